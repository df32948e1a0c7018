/** What a finding's loss is in the lane: how much of its part of the time, and what would be left of the run without it. */
import { isEstimate } from '../lanes/time.ts';
import type { App } from '../state/app.ts';
import { remedyOf } from '../state/findings.ts';
import { duration, gain } from '../math/format.ts';
import { budgetOf, lossScales, lostIn, timeLane, type Without } from './frame.ts';

/**
 * A sentence on why the lane shows another sum than what all findings of a part lost; "" where both are the same, or
 * differ by less than can be seen.
 */
export function whyLaneDiffers({ recording, state }: App, part: string | undefined): string {
  const budget = recording && budgetOf(recording, timeLane(recording, state.get().gpus[recording.id])?.id);
  const partOfLane = budget?.parts.find(({ name }) => name === part);
  if (!budget || !part) return '';
  const moreSeconds = (partOfLane?.seconds ?? 0) - lostIn(recording.report, part);
  if (lossScales(recording, budget).has(part) || Math.abs(moreSeconds) < 0.005 * budget.known_s) return '';
  const unread = (recording.report.wall_s ?? 0) - budget.known_s;
  let why = 'the rest of the time the GPU was at work, or another cause had it';
  if (isEstimate(part)) why = 'both are estimates from profiler windows';
  else if (moreSeconds > 0) why = `${duration(moreSeconds)} lie where no finding counts them`;
  else if (unread > 0.02 * budget.known_s) why = `for ${duration(unread)} the GPU was not sampled`;
  return `The lane shows ${duration(partOfLane?.seconds ?? 0)} of it: ${why}.`;
}

/** How the run would be without the loss of finding `id`; null where its part of the time, or what its fix saves, is not known. */
export function shortenedBy(app: App, id: string | null): Without | null {
  const { recording, rows } = app;
  const row = rows.find(({ list }) => list.some((finding) => finding.id === id));
  const item = row?.list.find((finding) => finding.id === id);
  if (!recording || !row || !item?.part) return null;
  const range = remedyOf(row, item).range;
  const budget = budgetOf(recording, timeLane(recording, app.state.get().gpus[recording.id])?.id);
  const lost = budget?.parts.find(({ name }) => name === item.part)?.seconds ?? 0;
  const wall = recording.report.wall_s ?? 0;
  const mostSaved = range ? (range[1] ?? lost) : 0;
  if (lost <= 0 || mostSaved <= 0) return null;
  const [least, saved] = [range?.[0] ?? 0, Math.min(mostSaved, lost)];
  const left = duration(wall - saved);
  const longest = duration(wall - Math.min(least, saved));
  return {
    part: item.part,
    share: saved / lost,
    least: saved > 0 ? Math.min(1, least / saved) : 0,
    text: `${left === longest ? left : `${left} to ${longest}`} instead of ${duration(wall)}: ${gain(wall, [least, saved])}`,
  };
}
