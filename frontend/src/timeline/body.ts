/** The lanes: grid, span tints, bands and stacks of the rows that are scrolled into sight. */
import type { LaneInfo } from '../api/types.ts';
import { drawBand, drawLine, drawStack, type Rect } from '../lanes/draw.ts';
import { colourOf } from '../lanes/colours.ts';
import { isAbout, type LaneRow, type Layout } from '../lanes/layout.ts';
import { joinLimit, Points, resample, robustTop } from '../lanes/resample.ts';
import { place, spanPieces } from '../lanes/spans.ts';
import { drawLimit } from '../lanes/limit.ts';
import { shift, span, toPixel } from '../math/range.ts';
import { niceTop } from '../math/ticks.ts';
import { seriesKey } from '../tiles/decode.ts';
import { drawEnds } from './ends.ts';
import type { Frame, Source } from './frame.ts';
import { axisTicks } from './head.ts';

const PAD = 7;

export interface LaneScale {
  top: number;
  /** How long a point's line goes on to the next one, in nanoseconds: so long its value holds. */
  join: number;
}

/** A lane's points, ready to be drawn; kept between frames so that panning allocates nothing. */
interface Prepared {
  row: LaneRow;
  /** Not the row's own run: another worker of the job, whose means are thin lines. */
  isOtherRun: boolean;
  /** One per series of a band; one for all series of a stack. */
  points: Points[];
  /** Of each of the points: the longest time to the next one that is no gap, in nanoseconds. */
  joinLimitsNs: number[];
  top: number;
}

const pool = new Map<string, Points[]>();

/** `count` buffers of points that a lane keeps between frames. */
function pooledPoints(key: string, count: number): Points[] {
  const points = pool.get(key) ?? [];
  while (points.length < count) points.push(new Points());
  if (pool.size > 400) pool.clear(); // lanes of recordings that are shown no more
  pool.set(key, points);
  return points;
}

/** Quantity -> the greatest value that was drawn of it in the present view, in its own unit: a scale only grows. */
export type Tops = Map<string, number>;

/**
 * Draws the rows that overlap [scroll, scroll + height), px; returns each drawn lane's scale of values by row key.
 * `tops`: the greatest values drawn so far in this view; they grow with what is drawn.
 */
export function drawBody(
  context: CanvasRenderingContext2D,
  frame: Frame,
  layout: Layout,
  scroll: number,
  height: number,
  tops: Tops = new Map(),
): Map<string, LaneScale> {
  const { palette, width, view } = frame;
  context.clearRect(0, 0, width, height);
  const visible = layout.rows.filter((row) => row.top - scroll <= height && row.top + row.height - scroll >= 0);
  // Resampled, with those of compared runs.
  const prepared: Prepared[] = [];
  for (const row of visible) {
    if (row.type !== 'lane') continue;
    const sources = frame.sources.filter(({ rowOwner }) => rowOwner === row.source);
    // Lines lie behind those of the row's own run, but before its columns.
    for (const source of row.lane.kind === 'stack' ? sources : sources.reverse()) prepared.push(prepareLane(frame, source, row));
  }
  // Equal quantities have equal scales.
  const scales = shareScales(prepared, tops);
  for (const row of visible) {
    if (row.type === 'lane' && row.source === frame.sources[0]?.id) drawSelected(context, frame, row, row.top - scroll);
  }
  context.fillStyle = palette.line;
  context.globalAlpha = palette.grid;
  for (const tick of axisTicks(frame).values) {
    context.fillRect(Math.round(toPixel(view, width, tick)), 0, 1, height);
  }
  context.globalAlpha = 1;
  for (const row of visible) {
    if (row.type !== 'group') continue;
    context.fillStyle = palette.stripe;
    context.fillRect(0, row.top - scroll, width, row.height);
  }
  for (const lane of prepared) {
    drawLane(context, frame, lane, lane.row.top - scroll, scales.get(lane.row.key)?.top ?? lane.top);
    if (lane.isOtherRun) continue;
    context.fillStyle = palette.line;
    context.fillRect(0, lane.row.top - scroll + lane.row.height - 1, width, 1);
  }
  drawEnds(context, frame, layout, scroll, height);
  if (frame.sources.some(({ tiles }) => tiles.refining)) drawRefining(context, frame);
  return scales;
}

/** Writes that what is drawn is coarser than what was recorded, while the server reads the rest. */
function drawRefining(context: CanvasRenderingContext2D, { palette, width }: Frame): void {
  const text = 'refining…';
  context.font = `11px ${palette.font}`;
  context.textBaseline = 'middle';
  const wide = context.measureText(text).width;
  context.fillStyle = palette.bg;
  context.globalAlpha = 0.8;
  context.fillRect(width - wide - 14, 2, wide + 12, 16);
  context.globalAlpha = 1;
  context.fillStyle = palette.muted;
  context.fillText(text, width - wide - 8, 10.5);
}

/** What a lane measures, whichever GPU or run it belongs to: such lanes share one scale. */
const quantity = ({ lane }: LaneRow): string => `${lane.id.replace(/^gpu\d+/, 'gpu')} ${lane.unit}`;

/** The scale of each lane by row key: that of its quantity, so that equal quantities are drawn on equal scales. */
function shareScales(prepared: Prepared[], tops: Tops): Map<string, LaneScale> {
  for (const { row, top } of prepared) raiseTop(tops, row, top);
  const stepTop = tops.get(STEPS) ?? 0;
  const scales = new Map<string, LaneScale>();
  for (const { row, joinLimitsNs, isOtherRun } of prepared) {
    if (isOtherRun) continue;
    let top = tops.get(quantity(row)) as number;
    // A wait of microseconds must not look like one of the stepTop: a tenth of a stepTop is the least scale.
    if (row.lane.unit === 'ms' && row.lane.kind !== 'stack') top = Math.max(top, stepTop / 10);
    scales.set(row.key, { top: row.lane.max ? top : niceTop(top, /^bytes/.test(row.lane.unit)), join: Math.max(2e9, ...joinLimitsNs) });
  }
  return scales;
}

/** Of the lanes that are stacks: how long steps are. */
const STEPS = 'step';

/** Raises the greatest value of a lane's quantity to `top`, in the lane's unit. */
function raiseTop(tops: Tops, row: LaneRow, top: number): void {
  for (const key of row.lane.kind === 'stack' ? [quantity(row), STEPS] : [quantity(row)]) tops.set(key, Math.max(tops.get(key) ?? 0, top));
}

/** Takes the scales of lanes out of sight into account as well; returns whether one of them grew. */
export function scaleAll(frame: Frame, layout: Layout, tops: Tops): boolean {
  const before = [...tops.values()].join();
  for (const row of layout.rows) {
    if (row.type !== 'lane' || row.lane.max) continue;
    for (const source of frame.sources.filter(({ rowOwner }) => rowOwner === row.source)) raiseTop(tops, row, prepareLane(frame, source, row).top);
  }
  return [...tops.values()].join() !== before;
}

/** The selected finding, over the lanes that it is about: the one thing that is tinted. */
function drawSelected(context: CanvasRenderingContext2D, { palette, view, width, axis, selected, sources: [source] }: Frame, { key, height }: LaneRow, top: number): void {
  if (!source || !selected || (selected.gpus?.length && /#gpu\d/.test(key) && !isAbout(selected.gpus, key))) return;
  context.fillStyle = palette.hue('slate');
  context.globalAlpha = palette.dark ? 0.25 : 0.14;
  // One over everything there is would only dim the lanes.
  const pieces = spanPieces(selected, axis, source.recording.extent).map((range) => ({ range }));
  for (const piece of place(pieces, view, width, 2)) if (piece.width < 0.9 * width) context.fillRect(piece.x, top, piece.width, height);
  context.globalAlpha = 1;
}

/** Lanes whose mean reads well as a filled area: shares of a whole and of a capacity. */
const isShare = (lane: LaneInfo): boolean => lane.unit === '%' || (lane.max ?? 0) > 0;

/**
 * Resamples a source's lane for the view, and finds its greatest value (with a tenth of room above it, unless the lane
 * has a fixed top).
 */
function prepareLane(frame: Frame, source: Source, row: LaneRow): Prepared {
  const { axis, width, level } = frame;
  const view = shift(frame.view, -source.shift);
  const { lane } = row;
  const isOtherRun = source.id !== row.source;
  const key = isOtherRun ? `${source.id} ${row.key}` : row.key;
  const of = { row, isOtherRun };
  const keys = lane.series.map(({ name }) => seriesKey(lane.id, name));
  // All series in one set of points.
  if (lane.kind === 'stack') {
    const points = pooledPoints(key, 1).slice(0, 1);
    const tiles = source.tiles.best(axis, level, view, keys[0] ?? '');
    const all = resample(tiles, keys, view, width, points[0] as Points);
    // A step that compiles takes a hundred times as long as the others, by which the lane is scaled.
    const scaled = lane.series.flatMap(({ name }, s) => (name === 'compile' ? [] : [s]));
    const total = (i: number): number => scaled.reduce((sum, s) => sum + ((all.mean[s]?.[i] as number) || 0), 0);
    return { ...of, points, joinLimitsNs: [], top: robustTop(all, total, 0.01) * 1.1 };
  }
  const points = pooledPoints(key, keys.length).slice(0, keys.length);
  let top = lane.max ?? 0;
  const joinLimitsNs = keys.map((key, s) => {
    const tiles = source.tiles.best(axis, level, view, key);
    const resampled = resample(tiles, [key], view, width, points[s] as Points);
    if (!lane.max) top = Math.max(top, robustTop(resampled, (i) => resampled.max[0]?.[i] as number, lane.group === 'training' ? 0.01 : 0) * 1.1);
    return joinLimit(resampled, axis, tiles[0]?.level ?? level);
  });
  return { ...of, points, joinLimitsNs, top };
}

/** Draws a lane with its upper edge at pixel `y`, on a scale up to the value `top`. */
function drawLane(context: CanvasRenderingContext2D, frame: Frame, prepared: Prepared, y: number, top: number): void {
  const { palette, axis, view, width } = frame;
  const { row, points, joinLimitsNs, isOtherRun } = prepared;
  const { lane } = row;
  const rect: Rect = { x: 0, y: y + PAD, width, height: row.height - PAD - 4 };
  const isStack = lane.kind === 'stack';
  const hue = (s: number): string => palette.hue(colourOf(row.whole, lane.series[s]?.name ?? ''));
  // Compared runs are thin lines.
  if (isOtherRun) {
    points.forEach((series, s) => {
      const colour = isStack ? palette.muted : hue(s);
      drawLine(context, series, isStack ? lane.series.length : 1, rect, { colour, top }, joinLimitsNs[s] ?? Infinity);
    });
    return;
  }
  if (isStack) {
    const colours = lane.series.map((_, s) => hue(s));
    const nsWidth = axis === 'time' ? width / span(view) : 0;
    drawStack(context, points[0] as Points, rect, { colours, top, nsWidth });
    return;
  }
  points.forEach((series, s) => {
    drawBand(context, series, 0, rect, { colour: hue(s), area: s === 0 && isShare(lane), top }, joinLimitsNs[s] as number);
  });
  drawLimit(context, lane, rect, top, palette);
}
