/** The server words the evidence; here it is made harmless. */
import type { EvidenceRow, WordedFinding } from '../api/types.ts';
import { clean } from './text.ts';

const isNumber = (value: unknown): value is number => typeof value === 'number' && value >= 0;

export const evidenceRows = (item: Pick<WordedFinding, 'rows'>): EvidenceRow[] =>
  (item.rows ?? []).map(({ name, label, value, rule, bar }) => ({
    name: clean(name),
    label: clean(label),
    value: clean(value, 200),
    rule: clean(rule, 40),
    bar: isNumber(bar?.[0]) && isNumber(bar?.[1]) && bar[1] > 0 ? bar : null,
  }));
