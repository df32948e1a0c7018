/** Turns a rule's evidence and thresholds into labelled rows; units are read off the names. */
import { bytes, count, percent, seconds, short, UNKNOWN } from './format.ts';
import { clean, humanise } from './text.ts';

const UNITS: [RegExp, (value: number) => string][] = [
  [/_(share|fraction|ratio_of_time)$/, (v) => percent(v * 100)],
  [/_(pct|percent)$/, percent],
  [/_ns$/, (v) => seconds(v / 1e9)],
  [/_us$/, (v) => seconds(v / 1e6)],
  [/_ms$/, (v) => seconds(v / 1e3)],
  [/_s$/, seconds],
  [/_bytes_per_s$/, (v) => `${bytes(v)}/s`],
  [/_bytes$/, (v) => bytes(v)],
  [/_mw$/, (v) => `${short(v / 1e3)} W`],
  [/_mhz$/, (v) => `${count(v)} MHz`],
  [/_c$/, (v) => `${short(v)} °C`],
];

const LABELS: Record<string, string> = {
  input_wait_share: 'share of step waiting for input',
  wait_share: 'share of step waiting for input',
  stage: 'slowest stage',
  slowest_stage: 'slowest stage',
  utilization_pct: 'GPU kernel active',
  gpu_utilization_pct: 'GPU kernel active',
};

/** Label without its unit suffix: "stage_time_ms" -> "stage time". */
export function evidenceLabel(name: string): string {
  const fixed = LABELS[name];
  if (fixed) return fixed;
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
}

/** A threshold may be a bare number, or name its side: `min_x`, `max_x`, `x_min`, `x_max`. */
export function evidenceRows(
  evidence: Record<string, unknown> | null | undefined,
  threshold: Record<string, unknown> | null | undefined,
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
    const limit = limits.get(key) ?? '';
    bare.delete(key);
    rows.push({ key, label: evidenceLabel(key), value: evidenceValue(key, value), threshold: limit });
  }
  for (const key of bare) {
    rows.push({ key: `threshold ${key}`, label: evidenceLabel(key), value: '', threshold: limits.get(key) ?? '' });
  }
  return rows;
}
