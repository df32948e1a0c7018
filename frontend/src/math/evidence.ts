/** Turns a rule's evidence and thresholds into labelled rows; units are read off the names. */
import { bytes, count, percent, seconds, short, times, UNKNOWN } from './format.ts';
import { clean, humanise } from './text.ts';

const UNITS: [RegExp, (value: number) => string][] = [
  [/_(share|fraction|ratio_of_time)$/, (v) => percent(v * 100)],
  [/(^|_)ms_per_(step|batch)$/, (v) => seconds(v / 1e3)],
  [/^seconds_each$/, seconds],
  [/(^|_)faster_(up_to|at_most)$/, times],
  [/_(pct|percent)$/, percent],
  [/_ns$/, (v) => seconds(v / 1e9)],
  [/_us$/, (v) => seconds(v / 1e6)],
  [/_ms$/, (v) => seconds(v / 1e3)],
  [/_s$/, seconds],
  [/(^|_)gb_per_s$/, (v) => `${short(v)} GB/s`],
  [/_gib$/, (v) => `${short(v)} GiB`],
  [/_bytes_per_s$/, (v) => `${bytes(v)}/s`],
  [/(^|_)bytes$/, (v) => bytes(v)],
  [/_mw$/, (v) => `${short(v / 1e3)} W`],
  [/_mhz$/, (v) => `${count(v)} MHz`],
  [/_c$/, (v) => `${short(v)} °C`],
];

export type Labels = Readonly<Record<string, string>>;

/** The server's words, the same as in the terminal; a name that it has none for in its own words. */
export function evidenceLabel(name: string, labels: Labels = {}): string {
  if (Object.hasOwn(labels, name)) return clean(labels[name]);
  // Without its unit suffix: "stage_time_ms" -> "stage time".
  let bare = name;
  for (const [pattern] of UNITS) {
    if (pattern.test(bare) && !/_(share|fraction)$/.test(bare)) {
      bare = bare.replace(pattern, pattern.source.includes('per_s') ? ' per second' : '');
      break;
    }
  }
  return humanise(bare.replace(/^gpu_/, 'GPU ')) || clean(name);
}

export function evidenceValue(name: string, value: unknown): string {
  if (value === null || value === undefined || value === '') return UNKNOWN;
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (typeof value === 'number') {
    for (const [pattern, format] of UNITS) if (pattern.test(name)) return format(value);
    return Number.isInteger(value) ? count(value) : short(value);
  }
  if (Array.isArray(value)) {
    const shown = value.slice(0, 6).map((item) => evidenceValue(name, item));
    return shown.join(', ') + (value.length > 6 ? ` and ${value.length - 6} more` : '');
  }
  if (typeof value === 'object') {
    return Object.entries(value)
      .slice(0, 6)
      .map(([key, item]) => `${evidenceLabel(key)} ${evidenceValue(key, item)}`)
      .join(', ');
  }
  return clean(value, 200);
}

export interface EvidenceRow {
  key: string;
  label: string;
  value: string;
  /** What the rule compared with, e.g. "≥ 5 %"; empty when nothing was compared. */
  threshold: string;
  /** Both as numbers, where there are both, for a small chart. */
  bullet: { seen: number; limit: number } | null;
}

const bulletOf = (seen: unknown, limit: unknown): EvidenceRow['bullet'] =>
  typeof seen === 'number' && typeof limit === 'number' && seen >= 0 && limit > 0 ? { seen, limit } : null;

/** The rule fired, so a bare limit is on the side of it where the evidence is not. */
function sided(limit: string, seen: unknown, threshold: unknown): string {
  if (limit === '' || typeof seen !== 'number' || typeof threshold !== 'number') return limit;
  return `${seen >= threshold ? '≥' : '<'} ${limit}`;
}

/** A threshold may be a bare number, or name its side: `min_x`, `max_x`, `x_min`, `x_max`. */
export function evidenceRows(
  evidence: Record<string, unknown> | null | undefined,
  threshold: Record<string, unknown> | null | undefined,
  labels: Labels = {},
): EvidenceRow[] {
  const limits = new Map<string, string>();
  const bare = new Set<string>();
  for (const [name, value] of Object.entries(threshold ?? {})) {
    const side = /^min_|_min(?=_|$)/.test(name) ? '≥ ' : /^max_|_max(?=_|$)/.test(name) ? '≤ ' : '';
    const key = name.replace(/^(min|max)_/, '').replace(/_(min|max)(?=_|$)/, '');
    limits.set(key, side + evidenceValue(key, value));
    bare.add(key);
  }
  const rows: EvidenceRow[] = [];
  for (const [key, value] of Object.entries(evidence ?? {})) {
    if (value === null) {
      bare.delete(key); // not measured, so not judged
      continue;
    }
    const limit = sided(limits.get(key) ?? '', value, threshold?.[key]);
    bare.delete(key);
    rows.push({ key, label: evidenceLabel(key, labels), value: evidenceValue(key, value), threshold: limit, bullet: bulletOf(value, threshold?.[key]) });
  }
  for (const key of bare) {
    rows.push({ key: `threshold ${key}`, label: evidenceLabel(key, labels), value: '', threshold: limits.get(key) ?? '', bullet: null });
  }
  return rows;
}
