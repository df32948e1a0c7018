/** The lanes: grid, span tints, bands and stacks of the rows that are scrolled into sight. */
import type { LaneInfo } from '../api/types.ts';
import { drawBand, drawStack, type Rect } from '../lanes/draw.ts';
import type { LaneRow, Layout } from '../lanes/layout.ts';
import { joinLimit, Points, resample, robustTop } from '../lanes/resample.ts';
import { spanRange } from '../lanes/spans.ts';
import { span, toPixel } from '../math/range.ts';
import { niceTop } from '../math/ticks.ts';
import { seriesKey } from '../tiles/decode.ts';
import { laneColour, seriesColour } from '../words/accounts.ts';
import { causeStyle } from '../words/causes.ts';
import type { Frame, Source } from './frame.ts';
import { axisTicks } from './head.ts';

const PAD = 7;
const scratch = new Points();

export interface LaneScale {
  top: number;
}

/** Draws rows overlapping [scroll, scroll + height); returns each drawn lane's value scale by row key. */
export function drawBody(
  context: CanvasRenderingContext2D,
  frame: Frame,
  layout: Layout,
  scroll: number,
  height: number,
): Map<string, LaneScale> {
  const { palette, width, view } = frame;
  const scales = new Map<string, LaneScale>();
  context.clearRect(0, 0, width, height);
  drawTints(context, frame, height);
  context.fillStyle = palette.line;
  context.globalAlpha = 0.6;
  for (const tick of axisTicks(frame).values) {
    context.fillRect(Math.round(toPixel(view, width, tick)), 0, 1, height);
  }
  context.globalAlpha = 1;
  for (const row of layout.rows) {
    const top = row.top - scroll;
    if (top > height || top + row.height < 0) continue;
    if (row.type === 'group') {
      context.fillStyle = palette.stripe;
      context.fillRect(0, top, width, row.height);
      continue;
    }
    const source = frame.sources.find(({ id }) => id === row.source);
    if (source) scales.set(row.key, drawLane(context, frame, source, row, top));
    context.fillStyle = palette.line;
    context.fillRect(0, top + row.height - 1, width, 1);
  }
  return scales;
}

/** Columns of colour behind the lanes: the selected span clearly, the others as a hint. */
function drawTints(context: CanvasRenderingContext2D, frame: Frame, height: number): void {
  const { palette, view, width, axis, selected } = frame;
  const source = frame.sources[0];
  if (!source) return;
  const list = source.recording.report.spans ?? [];
  for (const item of list) {
    const own = item === selected?.item;
    const range = spanRange(item, axis, source.recording.extent);
    if (!range) continue;
    const left = toPixel(view, width, range.start);
    const right = Math.max(toPixel(view, width, range.end), left + 2);
    if (right < 0 || left > width) continue;
    context.fillStyle = palette.hue(causeStyle(item.cause).colour);
    context.globalAlpha = own ? 0.14 : 0.05;
    context.fillRect(left, 0, right - left, height);
    if (own) {
      context.globalAlpha = 0.6;
      context.fillRect(Math.round(left), 0, 1, height);
      context.fillRect(Math.round(right) - 1, 0, 1, height);
    }
  }
  context.globalAlpha = 1;
}

/** Lanes whose mean reads well as a filled area: shares of a whole and of a capacity. */
const isShare = (lane: LaneInfo): boolean => lane.unit === '%' || lane.unit === 'pct' || (lane.max ?? 0) > 0;

function drawLane(
  context: CanvasRenderingContext2D,
  frame: Frame,
  source: Source,
  row: LaneRow,
  top: number,
): LaneScale {
  const { palette, axis, view, width, level } = frame;
  const { lane } = row;
  const rect: Rect = { x: 0, y: top + PAD, width, height: row.height - PAD - 4 };
  const keys = lane.series.map(({ name }) => seriesKey(lane.id, name));
  const nsWidth = axis === 'time' ? width / span(view) : 0;
  if (lane.kind === 'stack') {
    const tiles = source.tiles.best(axis, level, view, keys[0] ?? '');
    const points = resample(tiles, keys, view, width, scratch);
    const total = (i: number): number => {
      let sum = 0;
      for (let s = 0; s < keys.length; s++) sum += (points.mean[s]?.[i] as number) || 0;
      return sum;
    };
    const max = niceTop(robustTop(points, total, 0.01) * 1.1);
    const colours = lane.series.map(({ name }) => palette.hue(seriesColour(name)));
    drawStack(context, points, rect, { colours, top: max, nsWidth });
    frame.stepTop = max;
    return { top: max };
  }
  let max = lane.max ?? 0;
  const sets = keys.map((key, s) => {
    const tiles = source.tiles.best(axis, level, view, key);
    const points = resample(tiles, [key], view, width, s === 0 ? scratch : new Points());
    return { points, level: tiles[0]?.level ?? level };
  });
  if (!max) {
    for (const { points } of sets) {
      const robust = robustTop(points, (i) => points.max[0]?.[i] as number, lane.group === 'training' ? 0.01 : 0);
      max = Math.max(max, robust * 1.1);
    }
    // A wait of microseconds must not look like one of the step: a tenth of a step is the least scale.
    if (lane.unit === 'ms' && frame.stepTop) max = Math.max(max, frame.stepTop / 10);
    max = niceTop(max);
  }
  sets.forEach(({ points, level: drawn }, s) => {
    const bucketNs = axis === 'time' ? 2 ** drawn : averageBucket(points);
    const colour = palette.hue(s === 0 ? laneColour(lane.id) : (EXTRA[(s - 1) % EXTRA.length] as string));
    drawBand(context, points, 0, rect, { colour, area: s === 0 && isShare(lane), top: max }, joinLimit(points, bucketNs));
  });
  return { top: max };
}

/** Colours of a band lane's further series. */
export const EXTRA = ['olive', 'orange', 'violet', 'teal', 'grey'];

/** On the step axis a bucket lasts as long as its steps do. */
function averageBucket(points: Points): number {
  if (points.n < 2) return 0;
  const time = (points.time[points.n - 1] as number) - (points.time[0] as number);
  const pixels = (points.x0[points.n - 1] as number) - (points.x0[0] as number);
  return pixels > 0 ? (time / pixels) * ((points.x1[0] as number) - (points.x0[0] as number)) : 0;
}
