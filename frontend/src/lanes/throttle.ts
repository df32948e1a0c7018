/** Which lanes say when a GPU's clocks were lowered, and the marks of it in the lanes that show the effect. */
import type { LaneInfo, RecordingReply } from '../api/types.ts';
import type { Palette } from '../theme/palette.ts';
import type { Points } from './resample.ts';

const known = new WeakMap<RecordingReply, Map<string, LaneInfo>>();

/** The lane with the throttled shares of this lane's GPU; undefined where there is none, or this one shows no effect of them. */
export function throttleLane(recording: RecordingReply, lane: LaneInfo): LaneInfo | undefined {
  let found = known.get(recording);
  if (!found) {
    found = new Map(recording.lanes.filter(({ id }) => id.includes(':throttle_')).map((one) => [one.group, one]));
    known.set(recording, found);
  }
  return /:(power|temperature|sm_clock)_/.test(lane.id) ? found.get(lane.group) : undefined;
}

/** A driver caps its power for moments all the time: from this share of a sample's time on, in percent, it is marked. */
const MARKED_PCT = 10;

/** Pixel ranges in which a GPU was throttled; points no farther apart than `limit` ns are one range. */
export function throttledRanges(points: Points, series: number, limit: number): [number, number][] {
  const ranges: [number, number][] = [];
  let before = -1;
  for (let i = 0; i < points.n; i++) {
    let some = false;
    for (let s = 0; s < series; s++) if ((points.max[s]?.[i] as number) >= MARKED_PCT) some = true;
    if (!some) continue;
    const [from, to] = [points.x0[i] as number, Math.max(points.x1[i] as number, (points.x0[i] as number) + 2)];
    const last = ranges[ranges.length - 1];
    if (last && before === i - 1 && (points.time[i] as number) - (points.time[before] as number) <= limit) last[1] = to;
    else ranges.push([from, to]);
    before = i;
  }
  return ranges;
}

/** A hatched strip along the lane's upper edge, neutral: that it cost something is for a finding to say. `named`: with the word for it. */
export function drawThrottled(context: CanvasRenderingContext2D, ranges: [number, number][], y: number, width: number, palette: Palette, named: boolean): void {
  const seen = ranges.map(([from, to]) => [Math.max(0, from), Math.min(width, to)] as const).filter(([left, right]) => right > left);
  context.fillStyle = palette.text;
  context.strokeStyle = palette.text;
  context.lineWidth = 1;
  context.beginPath();
  for (const [left, right] of seen) {
    context.fillRect(left, y, right - left, 2);
    for (let x = Math.ceil(left / 4) * 4; x < right; x += 4) {
      context.moveTo(x + 0.5, y + 2);
      context.lineTo(x - 1.5, y + 6);
    }
  }
  context.stroke();
  const last = seen[seen.length - 1];
  if (!last || !named) return;
  context.font = `10px ${palette.font}`;
  const wide = context.measureText('throttled').width + 4;
  const at = last[1] + wide < width ? last[1] + 2 : Math.max(0, last[0] - wide - 2);
  context.fillStyle = palette.bg;
  context.globalAlpha = 0.8;
  context.fillRect(at, y, wide, 10);
  context.globalAlpha = 1;
  context.fillStyle = palette.text;
  context.textBaseline = 'top';
  context.fillText('throttled', at + 2, y);
}
