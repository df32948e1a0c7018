/** Turns a rule's evidence and thresholds into labelled rows; units are read off the names. */
import { bytes, count, percent, seconds, short, UNKNOWN } from './format.ts';
import { clean, humanise } from './text.ts';

const UNITS: [RegExp, (value: number) => string][] = [
  [/_(share|fraction|ratio_of_time)$/, (v) => percent(v * 100)],
  [/(^|_)ms_per_(step|batch)$/, (v) => seconds(v / 1e3)],
  [/^seconds_each$/, seconds],
  [/(^|_)faster_up_to$/, (v) => `${short(v)}×`],
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
  wait_pct: 'share of step spent waiting',
  wait_ms_per_step: 'wait a step',
  step_ms: 'a step took',
  step_without_wait_ms: 'a step without wait',
  gpu_active_pct: 'GPU active meanwhile',
  gpu_active_meanwhile_pct: 'GPU active meanwhile',
  utilization_pct: 'GPU kernel active',
  slowest_stage: 'slowest stage',
  stage_ms_per_batch: 'its time a batch',
  stage_parallelism: 'its parallelism',
  stage_flags: 'it is',
  faster_up_to: 'faster, up to',
  promise_rests_on: 'the promise rests on',
  validation_pct: 'share of time validating',
  validation_wait_pct: 'validation waiting for input',
  callback_pct: 'share of time in callbacks',
  share_of_callback_time_pct: 'its share of callback time',
  ms_per_step: 'a step',
  seconds_each: 'each took',
  longest_s: 'longest',
  times: 'how often',
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

/** The rule fired, so a bare limit is on the side of it where the evidence is not. */
function sided(limit: string, seen: unknown, threshold: unknown): string {
  if (limit === '' || typeof seen !== 'number' || typeof threshold !== 'number') return limit;
  return `${seen >= threshold ? '≥' : '<'} ${limit}`;
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
    const limit = sided(limits.get(key) ?? '', value, threshold?.[key]);
    bare.delete(key);
    rows.push({ key, label: evidenceLabel(key), value: evidenceValue(key, value), threshold: limit });
  }
  for (const key of bare) {
    rows.push({ key: `threshold ${key}`, label: evidenceLabel(key), value: '', threshold: limits.get(key) ?? '' });
  }
  return rows;
}
