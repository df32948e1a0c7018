/** Names of recordings, frameworks and groups as people read them. */
import type { LaneInfo, RecordingReply, RecordingSummary, WordedReport, Status } from '../api/types.ts';
import { clock, count, date, duration, plural, seconds } from '../math/format.ts';
import { clean } from '../math/text.ts';

export const STATUS: Record<Status, { title: string; hint: string }> = {
  live: { title: 'live', hint: 'training goes on; this view follows it' },
  ended: { title: 'ended', hint: 'fit returned' },
  interrupted: { title: 'interrupted', hint: 'fit was stopped by an exception or by a person' },
  lost: { title: 'killed', hint: 'the process ended without closing its recording; its last seconds may be missing' },
};

const TRACE = { title: 'trace', hint: 'imported from files of a profiler' };

export const statusOf = (status: Status | null | undefined, jobSource?: string | null): { title: string; hint: string } =>
  jobSource === 'imported trace' ? TRACE : STATUS[status as Status] ?? { title: clean(status ?? 'unknown', 20), hint: '' };

/** "steps 80–159" of a half-open range: the last step is the last one in it. */
export const stepsText = (item: { start_step?: number | null; end_step?: number | null }): string => {
  const { start_step: start, end_step: end } = item;
  if (typeof start !== 'number' || typeof end !== 'number') return '';
  return end - start <= 1 ? `step ${count(start)}` : `steps ${count(start)}–${count(end - 1)}`;
};

export const runName = (run: string | null | undefined, most = 80): string => (run === '.' || !run ? 'log directory' : clean(run, most));

/** "fit 2", or of a series of short ones "fits 2–1,001"; "" for the first one, which may be the only one. */
function fits({ fit_index: index, fits: many }: Pick<RecordingSummary, 'fit_index' | 'fits'>): string {
  if (typeof index !== 'number' || (index === 0 && !(typeof many === 'number' && many > 1))) return '';
  return typeof many === 'number' && many > 1 ? `fits ${count(index + 1)}–${count(index + many)}` : `fit ${index + 1}`;
}

/** What tells one fit of a run from another: "fit 2 · 14:02 · node-a · rank 1". */
export function fitLabel(item: Pick<RecordingSummary, 'fit_index' | 'fits' | 'start_ns' | 'host' | 'rank' | 'trial' | 'trial_config'>, withDate = false): string {
  const parts: string[] = [];
  if (item.trial) parts.push(clean(item.trial, 60));
  if (item.trial_config) parts.push(clean(item.trial_config, 60));
  if (fits(item)) parts.push(fits(item));
  if (typeof item.start_ns === 'number') parts.push(withDate ? date(item.start_ns) : clock(item.start_ns, 60e9));
  if (item.host) parts.push(clean(item.host, 40));
  if (typeof item.rank === 'number' && item.rank > 0) parts.push(`rank ${item.rank}`);
  return parts.join(' · ') || 'fit 1';
}

/** A recording's name beside others: its run, and what tells it from others of the run. */
export function sourceLabel(recording: RecordingReply): string {
  const { report } = recording;
  const parts = [runName(report.run)];
  if (report.trial_config || report.trial) parts.push(clean(report.trial_config || report.trial, 40));
  if (fits(report)) parts.push(fits(report));
  if (typeof report.rank === 'number' && (report.rank > 0 || (report.world_size ?? 1) > 1)) parts.push(`rank ${report.rank}`);
  return parts.join(' · ');
}

/** "gpu1 Power", "host CPU"; a lane of training needs no prefix. */
export const laneTitle = ({ group, title }: Pick<LaneInfo, 'group' | 'title'>): string =>
  `${/^gpu|^host/.test(group) ? `${clean(group, 20)} ` : ''}${clean(title, 60)}`;

/** "gpu1 VRAM, this process": one series of a lane that has several. */
export const seriesTitle = (lane: LaneInfo, { title }: LaneInfo['series'][number]): string =>
  lane.series.length > 1 ? `${laneTitle(lane)}, ${clean(title, 40)}` : laneTitle(lane);

/** Group of lanes -> its title: a GPU with its model. */
export function groupTitles(report: WordedReport): Record<string, string> {
  const titles: Record<string, string> = {};
  for (const gpu of report.gpus) {
    const parts = [`gpu${gpu.index}`, clean(gpu.name ?? '', 60)].filter(Boolean);
    if (gpu.used_by_framework === false) parts.push('not used by the framework');
    titles[`gpu${gpu.index}`] = parts.join(' · ');
  }
  titles.host = report.host ? `Host · ${clean(report.host, 40)}` : 'Host';
  return titles;
}

/** "Keras 3.15 on TensorFlow 2.21"; "" if unknown. */
export function frameworkText(framework: unknown): string {
  if (typeof framework === 'string') return clean(framework, 60);
  if (!framework || typeof framework !== 'object') return '';
  const facts = framework as Record<string, unknown>;
  const text = (key: string): string => (facts[key] ? clean(facts[key], 24) : '');
  const names: Record<string, string> = { tensorflow: 'TensorFlow', jax: 'JAX', torch: 'PyTorch' };
  const name = names[text('name')] ?? text('name');
  const parts = [text('keras') && `Keras ${text('keras')}`, name && `${name} ${text('version')}`.trim()];
  return parts.filter(Boolean).join(' on ');
}

/** "6,400 steps · median 113 ms a step · 12 m 03 s · Keras 3.15 on TensorFlow 2.21". */
export function factsLine(report: WordedReport): string[] {
  const parts = [plural(report.steps, 'step')];
  const step = report.step_ms;
  if (typeof step.p50 === 'number') {
    const tail = typeof step.p95 === 'number' ? ` (p95 ${seconds(step.p95 / 1e3)})` : '';
    parts.push(`median ${seconds(step.p50 / 1e3)} a step${tail}`);
  } else if (typeof step.mean === 'number') parts.push(`${seconds(step.mean / 1e3)} a step`);
  if (typeof report.wall_s === 'number') parts.push(`${duration(report.wall_s)} in all`);
  const framework = frameworkText(report.framework);
  if (framework) parts.push(framework);
  if (report.host) parts.push(clean(report.host, 40));
  for (const [name, limit] of Object.entries(report.thresholds_set)) parts.push(clean(`${name}=${limit}`, 60));
  return parts;
}
