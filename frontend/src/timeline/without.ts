/** What a finding's loss is in the lane: how much of its part of the time, and what would be left of the run without it. */
import { isEstimate } from '../lanes/time.ts';
import type { App } from '../state/app.ts';
import { remedyOf } from '../state/findings.ts';
import { duration, gain } from '../math/format.ts';
import { budgetOf, lossScales, lostIn, timeLane, type Without } from './frame.ts';

/** Why the lane shows another sum than what all findings of a part lost; "" where it is the same, or differs by less than can be seen. */
export function whyLaneDiffers({ recording, state }: App, part: string | undefined): string {
  const budget = recording && budgetOf(recording, timeLane(recording, state.get().gpus[recording.id])?.id);
  const own = budget?.parts.find(({ name }) => name === part);
  if (!budget || !part) return '';
  const more = (own?.seconds ?? 0) - lostIn(recording.report, part);
  if (lossScales(recording, budget).has(part) || Math.abs(more) < 0.005 * budget.known_s) return '';
  const unread = (recording.report.wall_s ?? 0) - budget.known_s;
  let why = 'the rest of the time the GPU was at work, or another cause had it';
  if (isEstimate(part)) why = 'both are estimates from profiler windows';
  else if (more > 0) why = `${duration(more)} lie where no finding counts them`;
  else if (unread > 0.02 * budget.known_s) why = `for ${duration(unread)} the GPU was not sampled`;
  return `The lane shows ${duration(own?.seconds ?? 0)} of it: ${why}.`;
}

/** The run without the loss of a finding; null where its part of the time, or what its fix saves, is not known. */
export function shortenedBy(app: App, id: string | null): Without | null {
  const { recording, rows } = app;
  const row = rows.find(({ list }) => list.some((finding) => finding.id === id));
  const item = row?.list.find((finding) => finding.id === id);
  if (!recording || !row || !item?.part) return null;
  const range = remedyOf(row, item).range;
  const budget = budgetOf(recording, timeLane(recording, app.state.get().gpus[recording.id])?.id);
  const lost = budget?.parts.find(({ name }) => name === item.part)?.seconds ?? 0;
  const wall = recording.report.wall_s ?? 0;
  const most = range ? (range[1] ?? lost) : 0;
  if (lost <= 0 || most <= 0) return null;
  const [least, saved] = [range?.[0] ?? 0, Math.min(most, lost)];
  const left = duration(wall - saved);
  const longest = duration(wall - Math.min(least, saved));
  return {
    part: item.part,
    share: saved / lost,
    least: saved > 0 ? Math.min(1, least / saved) : 0,
    text: `${left === longest ? left : `${left} to ${longest}`} instead of ${duration(wall)}: ${gain(wall, [least, saved])}`,
  };
}
