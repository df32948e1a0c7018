/** The fixed part above the lanes: overview with its brush, axis, bottleneck spans, phases. */
import type { PhaseReply, Waits, WindowInfo } from '../api/types.ts';
import { drawBand, drawStack, type Rect } from '../lanes/draw.ts';
import { joinLimit, Points, resample, robustTop } from '../lanes/resample.ts';
import type { Group } from '../lanes/findings.ts';
import { epochRanges, phaseRange, PHASE_COLOURS, phaseKind, place, spanBoxes, type Box, type PixelBox, type Placed, type SpanBox } from '../lanes/spans.ts';
import { clockTick, count, elapsed } from '../math/format.ts';
import { lastAtMost, span, toPixel, toValue } from '../math/range.ts';
import { clean } from '../math/text.ts';
import { stepTicks, timeTicks, type Ticks } from '../math/ticks.ts';
import { seriesKey } from '../tiles/decode.ts';
import { laneColour, seriesColour } from '../words/accounts.ts';
import { windowBoxes } from '../lanes/windows.ts';
import { causeStyle } from '../words/causes.ts';
import { stepsText } from '../words/labels.ts';
import type { Frame, Source } from './frame.ts';

export const OVERVIEW: Omit<Rect, 'x' | 'width'> = { y: 6, height: 24 };
export const AXIS_TOP = 42;
const AXIS_HEIGHT = 20;
export const SPANS_TOP = AXIS_TOP + AXIS_HEIGHT + 2;
/** Pixels of a finding's row: a name beside it is clicked, or touched. */
export const spanRow = (): number => (matchMedia('(pointer: coarse)').matches ? 26 : 21);
const PHASE_HEIGHT = 14;
export const WINDOW_ROW = 18;
/** A row of findings for so many pixels of the page, and two in any case: lanes need the rest. */
const PAGE_PER_ROW = 210;
/** About what the rows of all workers take, however many there are. */
const RANKS_HEIGHT = 40;

export interface Head {
  /** The findings that have a row, the costliest first. */
  groups: Group[];
  spans: SpanBox[];
  /** Findings without a row until all are asked for. */
  more: number;
  rowHeight: number;
  /** Workers of a job that wait for one of them: a thin row each below the findings; no pixels where nobody waits. */
  ranksTop: number;
  rankHeight: number;
  phases: Box<PhaseReply>[];
  epochs: PhaseReply[];
  phasesTop: number;
  /** Profiler windows, in a row of their own below the phases where there are any. */
  windows: Box<WindowInfo>[];
  windowsTop: number;
  height: number;
}

/** How many of the findings have a row: all that were asked for, else what leaves room for the lanes. */
function rowsShown({ groups, allRows, selected }: Pick<Frame, 'groups' | 'allRows' | 'selected'>): number {
  const most = Math.max(2, Math.floor(innerHeight / PAGE_PER_ROW));
  const at = groups.findIndex(({ list }) => list.some(({ id }) => id === selected?.id));
  return allRows || groups.length <= most + 1 || at >= most ? groups.length : most;
}

/** What stands in the head for the present axis; depends on the data and the zoom, not on pixels drawn. */
export function layOutHead(source: Source, frame: Pick<Frame, 'axis' | 'groups' | 'allRows' | 'selected' | 'waits'>): Head {
  const { extent, phases } = source.recording;
  const groups = frame.groups.slice(0, rowsShown(frame));
  const more = frame.groups.length - groups.length;
  const spans = spanBoxes(groups, frame.axis, extent);
  const rowHeight = spanRow();
  const boxes: Box<PhaseReply>[] = [];
  const epochs: PhaseReply[] = [];
  // In a series of short fits each of them is marked, instead of its first epoch again and again.
  const marked = phases.some((item) => item.kind === 'fit') ? 'fit' : 'epoch';
  const windows = windowBoxes(source.recording.windows, frame.axis, extent);
  phases.forEach((item) => {
    if (item.kind === 'profiler_window' && windows.length > 0) return;
    if (item.kind === marked) epochs.push(item);
    else if (item.kind !== 'fit' && item.kind !== 'epoch' && !isSum(item))
      boxes.push({ item, range: phaseRange(item, frame.axis, extent), row: 0 });
  });
  // The longest first, so that what happened inside of it stays visible.
  boxes.sort((a, b) => span(b.range) - span(a.range));
  const ranksTop = SPANS_TOP + Math.max(1, groups.length + Number(more > 0)) * rowHeight + 2;
  const ranks = frame.waits?.rows.length ?? 0;
  const rankHeight = Math.min(8, RANKS_HEIGHT / ranks);
  const phasesTop = ranksTop + (ranks > 0 ? ranks * rankHeight + 4 : 0);
  // No row without anything in it.
  const windowsTop = phasesTop + (boxes.length + epochs.length > 0 ? PHASE_HEIGHT + 4 : 0);
  const height = windowsTop + (windows.length > 0 ? WINDOW_ROW : 0) + 2;
  return { groups, spans, more, rowHeight, ranksTop, rankHeight, phases: boxes, epochs, phasesTop, windows, windowsTop, height };
}

/** Batch hooks of a callback are summed per flush: such a row has a span of time, but is no event in it. */
export const isSum = (phase: PhaseReply): boolean => phase.kind === 'callback' && (!phase.account || (phase.count ?? 1) > 1);

export function axisTicks(frame: Pick<Frame, 'axis' | 'clock' | 'view' | 'width' | 'sources'>): Ticks {
  const most = Math.max(2, Math.floor(frame.width / 90));
  if (frame.axis === 'step') return stepTicks(frame.view, most);
  return timeTicks(frame.view, most, frame.clock ? clockOffset(frame.sources[0]) : 0);
}

/** Nanoseconds from local midnight to the recording's start, so that ticks fall on round minutes. */
function clockOffset(source: Source | undefined): number {
  const start = source?.recording.extent.start_ns ?? 0;
  const midnight = new Date(start / 1e6).setHours(0, 0, 0, 0) * 1e6;
  return start - midnight;
}

export function axisLabel(frame: Pick<Frame, 'axis' | 'clock' | 'sources'>, value: number, resolution: number): string {
  if (frame.axis === 'step') return count(Math.round(value));
  const start = frame.sources[0]?.recording.extent.start_ns ?? 0;
  return frame.clock ? clockTick(start + value, resolution) : elapsed(value, resolution);
}

const scratch = new Points();

export function drawHead(context: CanvasRenderingContext2D, frame: Frame, head: Head): PlacedSpan[] {
  const { palette, width } = frame;
  context.clearRect(0, 0, width, head.height);
  context.textBaseline = 'middle';
  drawOverview(context, frame, head);
  drawAxis(context, frame);
  const placed = drawSpans(context, frame, head);
  drawWaits(context, frame, head);
  drawPhases(context, frame, head);
  drawWindows(context, frame, head);
  context.fillStyle = palette.line;
  context.fillRect(0, AXIS_TOP - 5, width, 1);
  return placed;
}

function drawOverview(context: CanvasRenderingContext2D, frame: Frame, head: Head): void {
  const { palette, bounds, width, overviewLevel } = frame;
  const source = frame.sources[0];
  if (!source) return;
  const rect: Rect = { x: 0, width, ...OVERVIEW };
  context.fillStyle = palette.stripe;
  context.fillRect(rect.x, rect.y, rect.width, rect.height);
  const lane = overviewLane(source);
  if (lane) {
    const keys = lane.series.map(({ name }) => seriesKey(lane.id, name));
    const first = keys[0] as string;
    const tiles = source.tiles.best(frame.axis, overviewLevel, bounds, first);
    const shown = lane.kind === 'stack' ? keys : [first];
    const points = resample(tiles, shown, bounds, width, scratch);
    const nsWidth = frame.axis === 'time' ? width / span(bounds) : 0;
    if (lane.kind === 'stack') {
      const total = (i: number): number => lane.series.reduce((sum, { name }, s) => sum + (name === 'compile' ? 0 : (points.mean[s]?.[i] as number) || 0), 0);
      const top = robustTop(points, total, 0.02) * 1.2 || 1;
      const colours = lane.series.map(({ name }) => palette.hue(seriesColour(name)));
      drawStack(context, points, rect, { colours, top, nsWidth });
    } else {
      const style = { colour: palette.hue(laneColour(lane.id)), area: true, top: lane.max || 100 };
      drawBand(context, points, 0, rect, style, joinLimit(points, frame.axis, overviewLevel));
    }
  }
  for (const box of place(head.spans.filter(({ whole }) => !whole), bounds, width, 2)) {
    context.fillStyle = palette.hue(causeStyle(box.item.cause).colour);
    context.fillRect(box.x, rect.y + rect.height + 1, box.width, 4);
  }
  drawBrush(context, frame, rect);
}

function overviewLane(source: Source): Source['recording']['lanes'][number] | null {
  const { lanes } = source.recording;
  return lanes.find((lane) => lane.id.endsWith(':utilization_pct')) ?? lanes.find((lane) => lane.kind === 'stack') ?? lanes[0] ?? null;
}

function drawBrush(context: CanvasRenderingContext2D, frame: Frame, rect: Rect): void {
  const { palette, bounds, view, width } = frame;
  const left = toPixel(bounds, width, view.start);
  const right = Math.max(toPixel(bounds, width, view.end), left + 2);
  context.fillStyle = palette.bg;
  context.globalAlpha = 0.62;
  context.fillRect(rect.x, rect.y, left, rect.height + 5);
  context.fillRect(right, rect.y, width - right, rect.height + 5);
  context.globalAlpha = 1;
  context.strokeStyle = palette.accent;
  context.lineWidth = 1.5;
  context.strokeRect(left + 0.75, rect.y - 2.25, Math.max(1, right - left - 1.5), rect.height + 9);
  context.fillStyle = palette.accent;
  for (const x of [left, right - 4]) {
    context.beginPath();
    context.roundRect(x, rect.y + rect.height / 2 - 7, 4, 18, 2);
    context.fill();
  }
}

function drawAxis(context: CanvasRenderingContext2D, frame: Frame): void {
  const { palette, view, width } = frame;
  const ticks = axisTicks(frame);
  context.font = `11px ${palette.font}`;
  let free = -Infinity;
  for (const value of ticks.values) {
    const x = Math.round(toPixel(view, width, value)) + 0.5;
    if (x < -1 || x > width + 1) continue;
    context.fillStyle = palette.strongLine;
    context.fillRect(x - 0.5, AXIS_TOP + AXIS_HEIGHT - 4, 1, 4);
    const text = axisLabel(frame, value, ticks.step);
    const half = context.measureText(text).width / 2;
    const at = Math.min(Math.max(x, half), width - half);
    if (at - half < free + 10) continue;
    free = at + half;
    context.fillStyle = palette.muted;
    context.textAlign = 'center';
    context.fillText(text, at, AXIS_TOP + 7);
  }
  context.textAlign = 'left';
}

/** A span in the pixels of the view. */
export type PlacedSpan = SpanBox & Placed;

/** Bars without text: what a row is called stands at its left. One without a range of its own, or estimated, is hatched. */
function drawSpans(context: CanvasRenderingContext2D, frame: Frame, head: Head): PlacedSpan[] {
  const { palette, view, width, selected } = frame;
  const placed = place(head.spans, view, width, 5);
  const height = head.rowHeight - 5;
  for (const box of placed) {
    const hue = palette.hue(causeStyle(box.item.cause).colour);
    const y = SPANS_TOP + box.row * head.rowHeight + 2;
    const left = Math.max(-4, box.x);
    const right = Math.min(width + 4, box.x + box.width);
    const own = box.item.id === selected?.id;
    context.fillStyle = hue;
    context.strokeStyle = hue;
    context.beginPath();
    context.roundRect(left, y, right - left, height, 3);
    const hatched = box.whole || box.item.confidence === 'estimated';
    context.globalAlpha = hatched ? 0.12 : own ? 0.85 : 0.55;
    context.fill();
    context.globalAlpha = 1;
    if (hatched) hatch(context, left, y, right - left, height);
    if (own) {
      context.strokeStyle = palette.text;
      context.lineWidth = 1.5;
      context.beginPath();
      context.roundRect(left + 0.75, y + 0.75, Math.max(1, right - left - 1.5), height - 1.5, 3);
      context.stroke();
    }
  }
  return placed;
}

function hatch(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number): void {
  context.save();
  context.beginPath();
  context.roundRect(x, y, width, height, 3);
  context.clip();
  context.globalAlpha = 0.7;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let at = x - height; at < x + width; at += 7) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}

/** What a worker waits for another one is no work of its own. */
export const waitColour = ({ rank: late, part, confidence }: Waits, rank: number | null): string => (rank !== late ? 'grey' : confidence === 'estimated' ? 'teal' : seriesColour(part));

/** A row a worker: in each cell its own work, then what it waits for the late one, whose row is framed and shows what makes it late. */
function drawWaits(context: CanvasRenderingContext2D, { palette, view, width, axis, waits }: Frame, { ranksTop, rankHeight }: Head): void {
  if (!waits) return;
  const at = (axis === 'step' ? waits.steps : waits.ns).map((edge) => toPixel(view, width, edge));
  waits.rows.forEach(({ rank, shares }, row) => {
    const y = ranksTop + row * rankHeight;
    const high = Math.max(1, rankHeight - 1);
    for (const [i, share] of shares.entries()) {
      const [left, right] = [at[i] as number, at[i + 1] as number];
      if (share === null || right < 0 || left > width) continue;
      const middle = right - (right - left) * share;
      context.fillStyle = palette.hue('blue');
      context.fillRect(left, y, middle - left, high);
      context.fillStyle = palette.hue(waitColour(waits, rank));
      context.fillRect(middle, y, right - middle, high);
    }
    if (rank !== waits.rank) return;
    context.strokeStyle = palette.text;
    context.lineWidth = 1.5;
    context.strokeRect(0.75, y - 0.75, width - 1.5, high + 1.5);
  });
  if (waits.confidence !== 'estimated') return;
  context.strokeStyle = palette.bg;
  hatch(context, Math.max(0, at[0] as number), ranksTop, Math.min(width, at[at.length - 1] as number), waits.rows.length * rankHeight);
}

/** The worker under pixel `x`, `y` of the head, and how much of the steps there it waits; null elsewhere. */
export function waitAt({ view, width, axis, waits }: Frame, { ranksTop, rankHeight }: Head, x: number, y: number): { rank: number | null; share: number } | null {
  const row = waits?.rows[Math.floor((y - ranksTop) / rankHeight)];
  const edges = axis === 'step' ? waits?.steps : waits?.ns;
  const share = row?.shares[lastAtMost(edges ?? [], toValue(view, width, x))];
  return row && typeof share === 'number' ? { rank: row.rank, share } : null;
}

/** The first of `texts` that fits into `room` pixels, else the last but one cut short; empty where nothing does. */
export function fitting(context: Pick<CanvasRenderingContext2D, 'measureText'>, texts: string[], room: number): string {
  const wide = (text: string): number => context.measureText(text).width;
  const fits = texts.find((text) => wide(text) <= room);
  const shortest = texts[texts.length - 1] ?? '';
  if (fits !== undefined && (fits !== shortest || texts.length < 2)) return fits;
  const cut = texts[texts.length - 2] ?? shortest;
  for (let length = cut.length - 1; length > shortest.length + 5; length--) {
    const text = `${cut.slice(0, length).trimEnd()}…`;
    if (wide(text) <= room) return text;
  }
  return fits ?? '';
}

/** Where a text of `wide` pixels that wants to stand at `at` has no box over it, to the right of there. */
function clearOf(boxes: PixelBox<PhaseReply>[], at: number, wide: number): number {
  const sorted = [...boxes].sort((a, b) => a.x - b.x);
  for (const box of sorted) if (box.x < at + wide && box.x + box.width > at - 3) at = box.x + box.width + 4;
  return at;
}

function drawPhases(context: CanvasRenderingContext2D, frame: Frame, head: Head): void {
  const { palette, view, width, axis } = frame;
  const extent = frame.sources[0]?.recording.extent;
  if (!extent) return;
  const y = head.phasesTop;
  context.font = `10.5px ${palette.font}`;
  const boxes = place(head.phases, view, width, 2);
  const lines = epochRanges(head.epochs, axis, extent).map(({ item, range }) => ({
    x: toPixel(view, width, range.start), end: toPixel(view, width, range.end), name: clean(item.name, 24),
  }));
  let free = -Infinity;
  lines.forEach((line) => {
    const until = Math.min(width, line.end);
    if (line.x > width || until < 0) return;
    context.fillStyle = palette.strongLine;
    context.fillRect(Math.round(line.x), y, 1, PHASE_HEIGHT);
    const wide = context.measureText(line.name).width;
    const at = clearOf(boxes, Math.max(line.x, 0) + 4, wide);
    if (at < free || until - at < wide + 6) return;
    context.fillStyle = palette.muted;
    context.fillText(line.name, at, y + PHASE_HEIGHT / 2 + 0.5);
    free = at + wide + 8;
  });
  for (const box of boxes) {
    const colour = palette.hue(PHASE_COLOURS[box.item.kind] ?? 'grey');
    context.fillStyle = colour;
    context.beginPath();
    context.roundRect(box.x, y + 1, box.width, PHASE_HEIGHT - 2, Math.min(2, box.width / 2));
    context.fill();
    const from = Math.max(0, box.x) + 5;
    const room = Math.min(width, box.x + box.width) - from - 4;
    if (room < 24) continue;
    const kind = phaseKind(box.item.kind);
    const text = fitting(context, [clean(box.item.name, 60) || kind, kind, ''], room);
    context.fillStyle = palette.bg;
    if (text) context.fillText(text, from, y + PHASE_HEIGHT / 2 + 0.5);
  }
}

/** Profiler windows as pills that can be clicked; at least wide enough for that. */
function drawWindows(context: CanvasRenderingContext2D, frame: Frame, head: Head): void {
  const { palette, view, width } = frame;
  const y = head.windowsTop;
  context.font = `10.5px ${palette.font}`;
  for (const box of place(head.windows, view, width, WINDOW_WIDTH)) {
    const open = box.item.window === frame.openWindow?.number;
    context.fillStyle = palette.hue('teal');
    context.beginPath();
    context.roundRect(box.x, y + 1, box.width, WINDOW_ROW - 6, 3);
    context.fill();
    if (open) {
      context.strokeStyle = palette.text;
      context.lineWidth = 2;
      context.stroke();
    }
    const step = frame.openWindow?.step;
    if (open && frame.axis === 'step' && typeof step === 'number' && box.width > WINDOW_WIDTH) {
      context.fillStyle = palette.text;
      context.fillRect(toPixel(view, width, step), y + WINDOW_ROW - 7, Math.max(2, width / span(view)), 3);
    }
    const text = stepsText({ start_step: box.item.first_step, end_step: box.item.stop_step });
    if (box.width < context.measureText(text).width + 12) continue;
    context.fillStyle = palette.bg;
    context.fillText(text, Math.max(0, box.x) + 6, y + WINDOW_ROW / 2 - 1.5);
  }
}

export const WINDOW_WIDTH = 8;

/** The profiler window at or nearest to pixel `x`, at most `reach` pixels away. */
export function windowAt(frame: Frame, head: Head, x: number, reach = 6): WindowInfo | null {
  let best: WindowInfo | null = null;
  let nearest = reach;
  for (const box of place(head.windows, frame.view, frame.width, WINDOW_WIDTH)) {
    const away = Math.max(0, box.x - x, x - box.x - box.width);
    if (away < nearest || (away === 0 && best === null)) [best, nearest] = [box.item, away];
  }
  return best;
}

/** The phase under pixel `x`, the shortest when several overlap. */
export function phaseAt(frame: Frame, head: Head, x: number): PhaseReply | null {
  const hits = place(head.phases, frame.view, frame.width, 4).filter((box) => x >= box.x - 2 && x <= box.x + box.width + 2);
  hits.sort((a, b) => a.width - b.width);
  return hits[0]?.item ?? null;
}
