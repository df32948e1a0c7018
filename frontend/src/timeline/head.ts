/** The fixed part above the lanes: where the view lies, the axis, the GPU's time, ranks or GPUs, phases, windows. */
import type { LaneInfo, PhaseReply, Waits, WindowInfo } from '../api/types.ts';
import { drawBand, type Rect } from '../lanes/draw.ts';
import type { Palette } from '../theme/palette.ts';
import { joinLimit, Points, resample } from '../lanes/resample.ts';
import { epochRanges, phaseRange, PHASE_COLOURS, phaseKind, place, spanPieces, type Box, type PixelBox } from '../lanes/spans.ts';
import { columnsOf, drawLabels, drawTime, holesOf, isDark, isEstimate, labelsOf, type Columns, type Hole } from '../lanes/time.ts';
import { clockTick, count, duration, elapsed } from '../math/format.ts';
import { lastAtMost, shift, span, toPixel, toValue } from '../math/range.ts';
import { clean } from '../math/text.ts';
import { stepTicks, timeTicks, type Ticks } from '../math/ticks.ts';
import { seriesKey } from '../tiles/decode.ts';
import { windowBoxes } from '../lanes/windows.ts';
import { stepsText } from '../words/labels.ts';
import { budgetOf, damageOf, lossScales, timeLane, type Frame, type Source } from './frame.ts';

/** The whole run as a thin line over the axis, with the view as its brush. */
export const BRUSH: Omit<Rect, 'x' | 'width'> = { y: 2, height: 6 };
export const AXIS_TOP = 11;
const AXIS_HEIGHT = 17;
export const LANE_TOP = AXIS_TOP + AXIS_HEIGHT;
const PHASE_HEIGHT = 15;
export const WINDOW_ROW = 18;
/** About what the rows of all workers, or of all GPUs, take, however many there are. */
const RANKS_HEIGHT = 104;
const GPUS_HEIGHT = 128;
const MFU_HEIGHT = 28;

/** One source's time. */
export interface TimeRow {
  source: Source;
  lane: LaneInfo;
  top: number;
  height: number;
}

export interface Head {
  /** The first source's, and below it those of compared runs. */
  times: TimeRow[];
  /** Of a run with nothing to fix: how much of the GPU's peak it uses, a thinner field below its time. */
  mfu: LaneInfo | undefined;
  mfuTop: number;
  /** Workers of a job that wait for one of them, the late one on top; no pixels where nobody waits. */
  ranks: Waits['rows'];
  ranksTop: number;
  rankHeight: number;
  /** Lanes of utilization of many GPUs, a thin row each, those that a finding names first. */
  gpus: LaneInfo[];
  gpusTop: number;
  gpuHeight: number;
  phases: Box<PhaseReply>[];
  epochs: PhaseReply[];
  phasesTop: number;
  /** Profiler windows, in a row of their own below the phases where there are any. */
  windows: Box<WindowInfo>[];
  windowsTop: number;
  height: number;
}

/** How high the lane of time is: a fifth of the tab, in every frame. */
export function timeHeight(width: number, height: number): number {
  if (width < 560) return 168;
  if (height >= 980) return 264;
  return height >= 760 ? 208 : 160;
}

/**
 * Lays out the head for the present axis: which rows there are, and their places in px. It depends on the data and the
 * frame, not on the zoom. `wide`, `high`: of the window, px.
 */
export function layOutHead(source: Source, frame: Pick<Frame, 'axis' | 'waits' | 'sources' | 'named' | 'gpus'>, wide = innerWidth, high = innerHeight): Head {
  const { extent, phases } = source.recording;
  const boxes: Box<PhaseReply>[] = [];
  const epochs: PhaseReply[] = [];
  // In a series of short fits each of them is marked, instead of its first epoch again and again.
  const marked = phases.some((item) => item.kind === 'fit') ? 'fit' : 'epoch';
  const windows = windowBoxes(source.recording.windows, frame.axis, extent);
  phases.forEach((item) => {
    if (item.kind === 'profiler_window' && windows.length > 0) return;
    if (item.kind === marked) epochs.push(item);
    else if (item.kind !== 'fit' && item.kind !== 'epoch' && !isSum(item)) boxes.push({ item, range: phaseRange(item, frame.axis, extent), row: 0 });
  });
  // The longest first, so that what happened inside of it stays visible.
  boxes.sort((a, b) => span(b.range) - span(a.range));
  // Sources with a lane of time of their own.
  const own = frame.sources.filter(({ id, rowOwner }) => id === rowOwner);
  const full = timeHeight(wide, high);
  const height = own.length > 1 ? Math.max(56, Math.round((1.4 * full) / own.length)) : full;
  let top = LANE_TOP;
  const times = own.flatMap((rowSource) => {
    const lane = timeLane(rowSource.recording, frame.gpus[rowSource.id]);
    if (!lane) return [];
    const row = { source: rowSource, lane, top, height };
    top += height + 2;
    return [row];
  });
  const mfu = source.recording.report.rows.length === 0 ? mfuLane(source, times[0]?.lane) : undefined;
  const mfuTop = top + 1;
  const gpusTop = mfuTop + (mfu ? MFU_HEIGHT + 3 : 0);
  const gpus = times[0]?.lane.id.endsWith(':mean') ? gpuLanes(source, frame.named) : [];
  const gpuHeight = Math.min(3, GPUS_HEIGHT / Math.max(1, gpus.length));
  const ranksTop = gpusTop + Math.ceil(gpus.length * gpuHeight) + (gpus.length > 0 ? 3 : 0);
  const late = frame.waits?.rank;
  const ranks = [...(frame.waits?.rows ?? [])].sort((a, b) => Number(b.rank === late) - Number(a.rank === late));
  const rankHeight = Math.min(14, RANKS_HEIGHT / Math.max(1, ranks.length));
  const phasesTop = ranksTop + (ranks.length > 0 ? ranks.length * rankHeight + 4 : 0);
  // No row without anything in it.
  const windowsTop = phasesTop + (boxes.length + epochs.length > 0 ? PHASE_HEIGHT + 4 : 0);
  const bottom = windowsTop + (windows.length > 0 ? WINDOW_ROW : 0) + 2;
  return {
    times, mfu, mfuTop, gpus, gpusTop, gpuHeight, ranks, ranksTop, rankHeight, phases: boxes, epochs, phasesTop, windows, windowsTop, height: bottom,
  };
}

const mfuLane = ({ recording }: Source, time: LaneInfo | undefined): LaneInfo | undefined =>
  recording.lanes.find(({ id, group }) => id.endsWith(':mfu_pct') && `time:${group}` === time?.id);

/** One lane of utilization a GPU, those that a finding names first. */
function gpuLanes({ recording }: Source, named: ReadonlySet<string>): LaneInfo[] {
  const lanes = new Map<string, LaneInfo>();
  for (const lane of recording.lanes) if (/^gpu\d+(\/\w+)?:utilization_pct$/.test(lane.id) && !lane.minor) lanes.set(lane.group, lane);
  return [...lanes.values()].sort((a, b) => Number(named.has(b.group)) - Number(named.has(a.group)));
}

/** Batch hooks of a callback are summed per flush: such a row has a span of time, but is no event in it. */
export const isSum = (phase: PhaseReply): boolean => phase.kind === 'callback' && (!phase.account || (phase.count ?? 1) > 1);

/** Ticks of the axis in view, one in 90 pixels at most. */
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

/** A place of the axis in words: a step's number, the time of day, or the time since the beginning. */
export function axisLabel(frame: Pick<Frame, 'axis' | 'clock' | 'sources'>, value: number, resolution: number): string {
  if (frame.axis === 'step') return count(Math.round(value));
  const start = frame.sources[0]?.recording.extent.start_ns ?? 0;
  return frame.clock ? clockTick(start + value, resolution) : elapsed(value, resolution);
}

/** What the lanes of time show: what is under a pixel, and which holes there are, is asked of it. */
export interface ShownTime {
  row: TimeRow;
  columns: Columns;
  holes: Hole[];
}

const scratch = new Points();

/** Draws the whole head; returns what its lanes of time show, to look up what is under a pixel later. */
export function drawHead(context: CanvasRenderingContext2D, frame: Frame, head: Head): ShownTime[] {
  const { width } = frame;
  context.clearRect(0, 0, width, head.height);
  context.textBaseline = 'middle';
  drawBrush(context, frame);
  drawAxis(context, frame);
  const shown = head.times.map((row) => drawRow(context, frame, { ...row, source: frame.sources.find(({ id }) => id === row.source.id) ?? row.source }));
  drawMfu(context, frame, head);
  drawGpus(context, frame, head);
  drawWaits(context, frame, head);
  drawPhases(context, frame, head);
  drawWindows(context, frame, head);
  return shown;
}

/** The columns of a source's lane of time in the view; those of the first source are shortened by the loss that is left out. */
export function columnsIn(frame: Frame, { source, lane }: Pick<TimeRow, 'source' | 'lane'>): Columns {
  const { axis, view, width, level } = frame;
  const keys = lane.series.map(({ name }) => seriesKey(lane.id, name));
  const own = shift(view, -source.shift);
  const points = resample(source.tiles.best(axis, level, own, keys[0] as string), keys, own, width, scratch);
  const { extent } = source.recording;
  const last = extent.end_ns - extent.start_ns;
  const { without } = frame;
  const inside = without && source === frame.sources[0] ? without : null;
  const nsPixel = axis === 'time' ? span(view) / width : 0;
  return columnsOf(points, lane.series.map(({ name }) => name), last, nsPixel, inside ? { part: inside.part, share: inside.share } : undefined);
}

/**
 * Draws a source's lane of time with its holes, labels and the selected span. A hole's seconds are scaled to the loss
 * that its findings state. Times are shifted by the source's `shift`.
 */
function drawRow(context: CanvasRenderingContext2D, frame: Frame, row: TimeRow): ShownTime {
  const { palette, width, view, axis } = frame;
  const rect: Rect = { x: 0, y: row.top, width, height: row.height };
  drawUnsampled(context, rect, palette.strongLine);
  const budget = budgetOf(row.source.recording, row.lane.id);
  const damage = damageOf(row.source.recording, budget);
  if (damage) drawDamaged(context, rect, palette, damage);
  const columns = columnsIn(frame, row);
  const scales = budget && lossScales(row.source.recording, budget);
  const holes = holesOf(columns, row.lane.series).map((hole) => ({ ...hole, seconds: hole.seconds * (scales?.get(hole.part) ?? 1) }));
  const estimate = budget?.is_estimate ?? false;
  drawTime(context, columns, row.lane.series, rect, { palette, lit: frame.lit, estimate });
  // Before the first and after the last reading the lane is pale.
  const [from, to] = budget?.sampled_ns ?? [0, 0];
  if (axis === 'time' && to > 0) {
    const [left, right] = [from + row.source.shift, to + row.source.shift].map((at) => Math.min(width, Math.max(0, toPixel(view, width, at)))) as [number, number];
    for (const [x, wide] of [[0, left], [right, width - right]] as const) {
      if (wide < 1) continue;
      context.fillStyle = palette.bg;
      context.globalAlpha = 0.7;
      context.fillRect(x, rect.y, wide, rect.height);
      drawUnsampled(context, { ...rect, x, width: wide }, palette.strongLine);
    }
  }
  context.fillStyle = palette.text;
  context.globalAlpha = 0.08;
  // Lines at quarters of the height.
  for (const quarter of [0.25, 0.5, 0.75]) context.fillRect(0, Math.round(rect.y + rect.height * quarter), width, 1);
  context.globalAlpha = 1;
  const selected = frame.selected && !frame.without && row.source === frame.sources[0] ? spanPieces(frame.selected, axis, row.source.recording.extent) : [];
  context.strokeStyle = palette.text;
  context.lineWidth = 2;
  for (const { x, width: wide } of place(selected.map((range) => ({ range })), view, width, 3)) context.strokeRect(x + 1, rect.y + 1, Math.max(2, wide - 2), rect.height - 2);
  const measure = (words: string, strong: boolean): number => {
    context.font = `${strong ? 600 : 400} 12px ${palette.font}`;
    return context.measureText(words).width;
  };
  const text = ({ part, seconds }: Hole): string => `${estimate || isEstimate(part) ? '≈ ' : ''}−${duration(seconds)}`;
  const named = holes.filter(({ part }) => part !== 'rest');
  drawLabels(context, labelsOf(named, rect, axis === 'time' ? view : { start: 0, end: 0 }, measure, text), rect, { palette, lit: frame.lit });
  if (frame.without && row.source === frame.sources[0]) drawShortened(context, frame, columns, rect);
  return { row, columns, holes };
}

/** Where nothing was sampled the ground is dotted: neither busy nor idle. */
function drawUnsampled(context: CanvasRenderingContext2D, rect: Rect, colour: string): void {
  context.fillStyle = colour;
  context.globalAlpha = 0.6;
  for (let y = rect.y + 6; y < rect.y + rect.height; y += 8) for (let x = rect.x + 4; x < rect.x + rect.width; x += 8) context.fillRect(x, y, 1.5, 1.5);
  context.globalAlpha = 1;
}

/** Where rows are damaged the ground is grey, and says how many steps are lost; what is known is drawn over it. */
function drawDamaged(context: CanvasRenderingContext2D, rect: Rect, palette: Palette, text: string): void {
  context.fillStyle = palette.hue('rest');
  context.fillRect(rect.x, rect.y, rect.width, rect.height);
  context.font = `12px ${palette.font}`;
  context.fillStyle = palette.text;
  context.textAlign = 'center';
  context.fillText(text, rect.x + rect.width / 2, rect.y + rect.height * 0.375);
  context.textAlign = 'left';
}

/**
 * Draws the time by which the run would be shorter, at the lane's right end: striped up to the most that the fix saves,
 * and filled as far as that much is not certain.
 */
function drawShortened(context: CanvasRenderingContext2D, { palette, without }: Frame, columns: Columns, rect: Rect): void {
  if (!without || columns.n === 0) return;
  const end = columns.x1[columns.n - 1] as number;
  const savedPx = rect.width - end;
  const latestEnd = end + savedPx * (1 - without.least);
  context.fillStyle = palette.stripe;
  context.fillRect(end, rect.y, savedPx, rect.height);
  context.fillStyle = palette.hue('rest');
  context.fillRect(end, rect.y, latestEnd - end, rect.height);
  context.strokeStyle = palette.text;
  context.lineWidth = 1.5;
  context.setLineDash([4, 4]);
  context.strokeRect(end + 0.75, rect.y + 0.75, Math.max(1, latestEnd - end - 1.5), rect.height - 1.5);
  context.setLineDash([]);
  context.font = `600 12px ${palette.font}`;
  context.fillStyle = palette.text;
  context.textAlign = 'right';
  const x = Math.max(context.measureText(without.text).width + 8, Math.min(rect.width - 6, Math.max(latestEnd, end) - 6));
  context.fillText(without.text, x, rect.y + 16);
  context.textAlign = 'left';
}

/**
 * Draws the whole run as a thin line in the colour of the part that took most of each point, and frames the range in
 * view; nothing is framed where all of it is in view.
 */
function drawBrush(context: CanvasRenderingContext2D, frame: Frame): void {
  const { palette, bounds, view, width, overviewLevel, axis, sources } = frame;
  const source = sources[0];
  const { y, height } = BRUSH;
  context.fillStyle = palette.line;
  context.fillRect(0, y, width, height);
  const left = Math.max(0, toPixel(bounds, width, view.start));
  const right = Math.min(width, Math.max(toPixel(bounds, width, view.end), left + 6));
  const lane = source && timeLane(source.recording, frame.gpus[source.id]);
  if (source && lane && (left > 0.5 || right < width - 0.5)) {
    const keys = lane.series.map(({ name }) => seriesKey(lane.id, name));
    const points = resample(source.tiles.best(axis, overviewLevel, bounds, keys[0] as string), keys, bounds, width, scratch);
    for (let i = 0; i < points.n; i++) {
      let largestPart = 0;
      for (let s = 1; s < keys.length; s++) if ((points.mean[s]?.[i] as number) > (points.mean[largestPart]?.[i] as number)) largestPart = s;
      context.fillStyle = palette.hue(lane.series[largestPart]?.name ?? 'rest');
      context.fillRect(points.x0[i] as number, y, Math.max(1, (points.x1[i] as number) - (points.x0[i] as number)), height);
    }
    context.fillStyle = palette.bg;
    context.globalAlpha = 0.6;
    context.fillRect(0, y, left, height);
    context.fillRect(right, y, width - right, height);
    context.globalAlpha = 1;
  }
  if (left <= 0.5 && right >= width - 0.5) return;
  context.strokeStyle = palette.accent;
  context.lineWidth = 1.5;
  context.strokeRect(left + 0.75, y - 0.75, Math.max(1, right - left - 1.5), height + 1.5);
}

/** Draws the axis' ticks, and as many of their labels as do not touch. */
function drawAxis(context: CanvasRenderingContext2D, frame: Frame): void {
  const { palette, view, width } = frame;
  const ticks = axisTicks(frame);
  context.font = `11px ${palette.font}`;
  let labelEnd = -Infinity;
  for (const value of ticks.values) {
    const x = Math.round(toPixel(view, width, value)) + 0.5;
    if (x < -1 || x > width + 1) continue;
    context.fillStyle = palette.strongLine;
    context.fillRect(x - 0.5, LANE_TOP - 4, 1, 4);
    const text = axisLabel(frame, value, ticks.step);
    const half = context.measureText(text).width / 2;
    const at = Math.min(Math.max(x, half), width - half);
    if (at - half < labelEnd + 10) continue;
    labelEnd = at + half;
    context.fillStyle = palette.muted;
    context.textAlign = 'center';
    context.fillText(text, at, AXIS_TOP + 7);
  }
  context.textAlign = 'left';
}

/** Draws oblique lines over a rectangle, in px. */
function drawHatch(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number): void {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
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

/** Draws the share of the GPU's peak that the run uses (MFU), a band from 0 to 100 %. */
function drawMfu(context: CanvasRenderingContext2D, { axis, level, view, width, palette, sources: [source] }: Frame, { mfu, mfuTop }: Head): void {
  if (!source || !mfu) return;
  const key = seriesKey(mfu.id, mfu.series[0]?.name ?? '');
  const points = resample(source.tiles.best(axis, level, view, key), [key], view, width, scratch);
  context.fillStyle = palette.stripe;
  context.fillRect(0, mfuTop, width, MFU_HEIGHT);
  drawBand(context, points, 0, { x: 0, y: mfuTop, width, height: MFU_HEIGHT }, { colour: palette.hue('slate'), area: true, top: mfu.max ?? 100 }, joinLimit(points, axis, level));
}

/** Draws a thin row for each GPU, the stronger its blue, the busier; GPUs that a finding names come first, in a frame. */
function drawGpus(context: CanvasRenderingContext2D, frame: Frame, { gpus, gpusTop, gpuHeight }: Head): void {
  const { axis, level, view, width, palette, named, sources } = frame;
  const source = sources[0];
  if (!source || gpus.length === 0) return;
  context.fillStyle = palette.hue('rest');
  context.fillRect(0, gpusTop, width, gpus.length * gpuHeight);
  context.fillStyle = palette.hue('busy');
  gpus.forEach((lane, row) => {
    const key = seriesKey(lane.id, lane.series[0]?.name ?? '');
    const points = resample(source.tiles.best(axis, level, view, key), [key], view, width, scratch);
    const limit = joinLimit(points, axis, level);
    for (let i = 0; i < points.n; i++) {
      const left = points.x0[i] as number;
      const joins = i + 1 < points.n && (points.time[i + 1] as number) - (points.time[i] as number) <= limit;
      context.globalAlpha = Math.min(1, (points.mean[0]?.[i] as number) / 100);
      context.fillRect(left, gpusTop + row * gpuHeight, Math.max(1, (joins ? (points.x0[i + 1] as number) : (points.x1[i] as number)) - left), Math.max(1, gpuHeight - 0.5));
    }
  });
  context.globalAlpha = 1;
  const framed = gpus.filter(({ group }) => named.has(group)).length;
  if (framed === 0) return;
  context.strokeStyle = palette.text;
  context.lineWidth = 1.5;
  context.strokeRect(0.75, gpusTop - 0.75, width - 1.5, framed * gpuHeight + 1.5);
}

/** What a worker waits for another one is no work of its own; what makes the late one late has the colour of its cause. */
export function waitColour({ rank: late, part }: Waits, rank: number | null): string {
  if (rank !== late) return 'rest';
  if (part === 'input_wait') return 'input';
  return part === 'callbacks' ? 'callbacks' : 'slate';
}

/**
 * Draws a row for each worker: in each cell its own work, and over it the share that it waits for the late worker. The
 * late one's row is framed and shows what makes it late. Estimates are hatched.
 */
function drawWaits(context: CanvasRenderingContext2D, { palette, view, width, axis, waits }: Frame, { ranks, ranksTop, rankHeight }: Head): void {
  if (!waits) return;
  const at = (axis === 'step' ? waits.steps : waits.ns).map((edge) => toPixel(view, width, edge));
  ranks.forEach(({ rank, shares }, row) => {
    const y = ranksTop + row * rankHeight;
    const high = Math.max(1, rankHeight - 1);
    for (const [i, share] of shares.entries()) {
      const [left, right] = [at[i] as number, at[i + 1] as number];
      if (share === null || right < 0 || left > width) continue;
      context.fillStyle = palette.hue('busy');
      context.fillRect(left, y, right - left + 0.5, high);
      context.fillStyle = palette.hue(waitColour(waits, rank));
      // As in the lane above: waiting lies over the work; in a row too thin for that, they mix.
      if (high >= 6) context.fillRect(left, y, right - left + 0.5, high * share);
      else {
        context.globalAlpha = share;
        context.fillRect(left, y, right - left + 0.5, high);
        context.globalAlpha = 1;
      }
    }
    if (rank !== waits.rank) return;
    context.strokeStyle = palette.text;
    context.lineWidth = 1.5;
    context.strokeRect(0.75, y - 0.75, width - 1.5, high + 1.5);
  });
  if (waits.confidence !== 'estimated') return;
  context.strokeStyle = palette.bg;
  drawHatch(context, Math.max(0, at[0] as number), ranksTop, Math.min(width, at[at.length - 1] as number), ranks.length * rankHeight);
}

/** The worker under pixel `x`, `y` of the head, and how much of the steps there it waits; null elsewhere. */
export function waitAt({ view, width, axis, waits }: Frame, { ranks, ranksTop, rankHeight }: Head, x: number, y: number): { rank: number | null; share: number } | null {
  const row = y < ranksTop ? undefined : ranks[Math.floor((y - ranksTop) / rankHeight)];
  const edges = axis === 'step' ? waits?.steps : waits?.ns;
  const share = row?.shares[lastAtMost(edges ?? [], toValue(view, width, x))];
  return row && typeof share === 'number' ? { rank: row.rank, share } : null;
}

/** "65 % working · 35 % waiting for 2": of a worker's row, over all of its cells. */
export function meanWait({ shares }: Waits['rows'][number]): number | null {
  const knownShares = shares.filter((share) => share !== null);
  return knownShares.length > 0 ? knownShares.reduce((sum, share) => sum + share, 0) / knownShares.length : null;
}

/** Where a text of `wide` pixels that wants to stand at `at` has no box over it, to the right of there. */
function freePlace(boxes: PixelBox<PhaseReply>[], at: number, wide: number): number {
  const sorted = [...boxes].sort((a, b) => a.x - b.x);
  for (const box of sorted) if (box.x < at + wide && box.x + box.width > at - 3) at = box.x + box.width + 4;
  return at;
}

/** Draws epochs as lines with their names, and phases of the training thread as boxes over them. */
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
  // Where the next name may begin, px.
  let free = -Infinity;
  lines.forEach((line) => {
    const until = Math.min(width, line.end);
    if (line.x > width || until < 0) return;
    context.fillStyle = palette.strongLine;
    context.fillRect(Math.round(line.x), y, 1, PHASE_HEIGHT);
    const wide = context.measureText(line.name).width;
    const at = freePlace(boxes, Math.max(line.x, 0) + 4, wide);
    if (at < free || until - at < wide + 6) return;
    context.fillStyle = palette.muted;
    context.fillText(line.name, at, y + PHASE_HEIGHT / 2 + 0.5);
    free = at + wide + 8;
  });
  for (const box of boxes) {
    const colour = palette.hue(PHASE_COLOURS[box.item.kind] ?? 'grey');
    context.fillStyle = colour;
    context.fillRect(box.x, y + 1, box.width, PHASE_HEIGHT - 3);
    const from = Math.max(0, box.x) + 5;
    const room = Math.min(width, box.x + box.width) - from - 4;
    if (room < 24) continue;
    const kind = phaseKind(box.item.kind);
    const text = [clean(box.item.name, 60) || kind, kind].find((title) => context.measureText(title).width <= room);
    context.fillStyle = isDark(colour) ? '#ffffff' : '#16191d';
    if (text) context.fillText(text, from, y + PHASE_HEIGHT / 2);
  }
}

/**
 * Draws profiler windows as pills that can be clicked, at least `WINDOW_WIDTH` px wide; the open one is framed, with a
 * mark at its step.
 */
function drawWindows(context: CanvasRenderingContext2D, frame: Frame, head: Head): void {
  const { palette, view, width } = frame;
  const y = head.windowsTop;
  context.font = `10.5px ${palette.font}`;
  for (const box of place(head.windows, view, width, WINDOW_WIDTH)) {
    const open = box.item.window === frame.openWindow?.number;
    context.fillStyle = palette.hue('slate');
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

/** The profiler window at or nearest to pixel `x`, at most `reach` px away; null without one. */
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
