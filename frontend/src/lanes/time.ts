/** The lane of a GPU's time: busy from below, and above its edge who took the rest. Pure but for the drawing. */
import type { LaneInfo } from '../api/types.ts';
import type { Range } from '../math/range.ts';
import type { Palette } from '../theme/palette.ts';
import type { Rect } from './draw.ts';
import type { Points } from './resample.ts';

/** A place where a part of the time is taken without a break: in pixels of its lane, and in seconds. */
export interface Hole {
  part: string;
  title: string;
  x0: number;
  x1: number;
  /** Where its middle lies: pixels, and shares from below. */
  x: number;
  low: number;
  high: number;
  seconds: number;
}

/** What a lane shows, column by column; `base[s]` to `base[s + 1]` is the share of part `s`, 0 to 1 from below. */
export interface Columns {
  n: number;
  x0: Float32Array;
  x1: Float32Array;
  base: Float32Array[];
  /** Seconds of each column. */
  seconds: Float32Array;
  known: Uint8Array;
}

/** Parts that are no loss: the GPU's own work. */
const WORK = new Set(['busy']);
export const isLoss = (part: string): boolean => !WORK.has(part);
/** A break of fewer pixels does not part a hole. */
const BREAK_PX = 6;
/** A smaller share of a column is no hole to be pointed at. */
const LEAST_SHARE = 0.06;

/**
 * The columns of resampled points, as shares 0 to 1. `parts`: names of the series, from below. `endNs`: when the last
 * point ends, ns since the start. `nsPixel`: ns a pixel of the time axis is wide, 0 on the axis of steps. `spared`:
 * which part shrinks, and by which share of itself; then all that follows moves to the left.
 */
export function columnsOf(points: Points, parts: readonly string[], endNs: number, nsPixel: number, spared?: { part: string; share: number }): Columns {
  const { n } = points;
  const out: Columns = {
    n, x0: new Float32Array(n), x1: new Float32Array(n), base: Array.from({ length: parts.length + 1 }, () => new Float32Array(n)), seconds: new Float32Array(n), known: new Uint8Array(n),
  };
  const sparedPart = spared ? parts.indexOf(spared.part) : -1;
  let movedPx = 0;
  for (let i = 0; i < n; i++) {
    const next = i + 1 < n ? (points.time[i + 1] as number) : Math.max(endNs, points.time[i] as number);
    let total = 0;
    const goneShare = sparedPart < 0 ? 0 : ((spared?.share ?? 0) * (points.mean[sparedPart]?.[i] || 0)) / 100;
    // An unknown part leaves the column unknown.
    for (let s = 0; s < parts.length; s++) {
      const share = (points.mean[s]?.[i] as number) / 100;
      if (!(share >= 0)) break;
      total += s === sparedPart ? share - goneShare : share;
      (out.base[s + 1] as Float32Array)[i] = total / Math.max(1e-6, 1 - goneShare);
      if (s === parts.length - 1) out.known[i] = 1;
    }
    // Buckets tell where they end to a pixel or so: a gap of sparedPart is none.
    const follows = i + 1 < n && (points.x0[i + 1] as number) - (points.x1[i] as number) < 1.5;
    const right = follows ? (points.x0[i + 1] as number) : (points.x1[i] as number);
    const widthPx = (right - (points.x0[i] as number)) * (1 - goneShare);
    out.x0[i] = (points.x0[i] as number) - movedPx;
    out.x1[i] = (out.x0[i] as number) + widthPx;
    movedPx += right - (points.x0[i] as number) - widthPx;
    out.seconds[i] = (nsPixel > 0 ? (widthPx * nsPixel) / 1e9 : Math.max(0, (next - (points.time[i] as number)) / 1e9) * (1 - goneShare));
  }
  return out;
}

/**
 * The holes: places where a part that is a loss is taken without a break. In the order of the axis within each part. A
 * hole's middle is the mean of its columns, weighted by their area.
 */
export function holesOf(columns: Columns, series: LaneInfo['series']): Hole[] {
  const holes: Hole[] = [];
  series.forEach(({ name, title }, s) => {
    if (!isLoss(name)) return;
    const [low, high] = [columns.base[s] as Float32Array, columns.base[s + 1] as Float32Array];
    let open: Hole | null = null;
    let weight = 0;
    const close = (): void => {
      if (open && weight > 0) {
        open.x /= weight;
        open.low /= weight;
        open.high /= weight;
        holes.push(open);
      }
      open = null;
      weight = 0;
    };
    for (let i = 0; i < columns.n; i++) {
      const share = columns.known[i] ? (high[i] as number) - (low[i] as number) : 0;
      const [x0, x1] = [columns.x0[i] as number, columns.x1[i] as number];
      if (open && (share < LEAST_SHARE ? x1 : x0) - (open as Hole).x1 > BREAK_PX) close();
      if (share < LEAST_SHARE) continue;
      open ??= { part: name, title, x0, x1, x: 0, low: 0, high: 0, seconds: 0 };
      const area = share * (x1 - x0);
      open.x1 = x1;
      open.x += (area * (x0 + x1)) / 2;
      open.low += area * (low[i] as number);
      open.high += area * (high[i] as number);
      open.seconds += share * (columns.seconds[i] as number);
      weight += area;
    }
    close();
  });
  return holes;
}

/** The column and the part at pixel `x` of the lane and at `share` (0 to 1) from below; null where nothing is known. */
export function partAt(columns: Columns, series: LaneInfo['series'], x: number, share: number): { index: number; part: string } | null {
  for (let i = 0; i < columns.n; i++) {
    if (x < (columns.x0[i] as number) || x >= (columns.x1[i] as number) || !columns.known[i]) continue;
    const at = series.findIndex((_, s) => share < (columns.base[s + 1]?.[i] as number));
    const { name } = series[at < 0 ? series.length - 1 : at] ?? { name: '' };
    return { index: i, part: name };
  }
  return null;
}

/** Hatched in the lane: not measured, but split by profiler windows. */
export const isEstimate = (part: string): boolean => part === 'launch';

export interface TimeStyle {
  palette: Palette;
  /** The one part that stays while the others fade. */
  lit: string | null;
  /** The thread is ahead of the GPU: the edge is dashed. */
  estimate: boolean;
}

/** Fills the parts of each column from below; where the busy time is an estimate, its edge is dashed. */
export function drawTime(context: CanvasRenderingContext2D, columns: Columns, series: LaneInfo['series'], rect: Rect, { palette, lit, estimate }: TimeStyle): void {
  const y = (share: number): number => rect.y + rect.height * (1 - Math.min(1, share));
  /** Ranges [from, to) of neighbouring columns in which the part between two edges is at least 0.05 % high: most parts are nowhere to be drawn. */
  const stretches = (low?: Float32Array, high?: Float32Array): [number, number][] => {
    const ranges: [number, number][] = [];
    for (let i = 0; i < columns.n; i++) {
      if (!columns.known[i] || (low && high && high[i]! - low[i]! < 5e-4)) continue;
      const last = ranges[ranges.length - 1];
      if (last && last[1] === i && (columns.x0[i] as number) - (columns.x1[i - 1] as number) < 1) last[1] = i + 1;
      else ranges.push([i, i + 1]);
    }
    return ranges;
  };
  context.save();
  context.beginPath();
  context.rect(rect.x, rect.y, rect.width, rect.height);
  context.clip();
  // Along the upper or lower edge of columns, to the right or back.
  const along = (values: Float32Array, from: number, to: number, back: boolean): void => {
    for (let k = 0; k < to - from; k++) {
      const i = back ? to - 1 - k : from + k;
      const at = y(values[i] as number);
      context.lineTo(rect.x + (back ? columns.x1[i]! : columns.x0[i]!), at);
      context.lineTo(rect.x + (back ? columns.x0[i]! : columns.x1[i]!), at);
    }
  };
  series.forEach(({ name }, s) => {
    context.globalAlpha = lit === null || lit === name ? 1 : 0.25;
    context.fillStyle = palette.hue(name);
    context.beginPath();
    for (const [from, to] of stretches(columns.base[s], columns.base[s + 1])) {
      context.moveTo(rect.x + columns.x0[from]!, y(columns.base[s]![from] as number));
      along(columns.base[s + 1] as Float32Array, from, to, false);
      along(columns.base[s] as Float32Array, from, to, true);
      context.closePath();
    }
    context.fill();
    if (isEstimate(name)) drawHatch(context, rect, palette);
  });
  context.globalAlpha = 1;
  if (estimate) {
    context.strokeStyle = palette.text;
    context.lineWidth = 1.25;
    context.setLineDash([5, 4]);
    context.beginPath();
    for (const [from, to] of stretches()) {
      context.moveTo(rect.x + columns.x0[from]!, y(columns.base[1]![from] as number));
      along(columns.base[1] as Float32Array, from, to, false);
    }
    context.stroke();
    context.setLineDash([]);
  }
  context.restore();
}

/** Draws oblique lines into the current path, over its fill. */
function drawHatch(context: CanvasRenderingContext2D, rect: Rect, palette: Palette): void {
  context.save();
  context.clip();
  context.strokeStyle = palette.text;
  context.globalAlpha *= 0.3;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = rect.x - rect.height; at < rect.x + rect.width; at += 8) {
    context.moveTo(at, rect.y + rect.height);
    context.lineTo(at + rect.height, rect.y);
  }
  context.stroke();
  context.restore();
}

/**
 * A label that fits into its hole. `lines`: name and seconds, or the seconds alone. `x`: px from rect.x; `y`: px from
 * the top of the canvas.
 */
export interface Label {
  hole: Hole;
  lines: string[];
  x: number;
  y: number;
  width: number;
  height: number;
}

const LINE = 16;
/** A name may be so many pixels wider than its hole: alike holes are labelled alike. */
const OVERHANG = 8;

/**
 * Labels for the costliest holes, at most 40; each lies within its hole and over no other label. `measure`: width of a
 * text, px; `text`: the seconds of a hole in words. On an empty `view` (the axis of steps) no hole is too short.
 */
export function labelsOf(holes: readonly Hole[], rect: Rect, view: Range, measure: (text: string, strong: boolean) => number, text: (hole: Hole) => string): Label[] {
  const placed: Label[] = [];
  // Seconds: four thousandths of the view.
  const least = ((view.end - view.start) / 1e9) * 0.004;
  for (const hole of [...holes].sort((a, b) => b.seconds - a.seconds)) {
    if (hole.seconds < least && view.end > view.start + 1e6) continue;
    const room = Math.min(hole.x1, rect.width) - Math.max(hole.x0, 0) - 2;
    const high = (hole.high - hole.low) * rect.height;
    const seconds = text(hole);
    const [name, number] = [measure(hole.title, false), measure(seconds, true) + 12];
    // Lines, width and height, the larger label first.
    const fits: [string[], number, number][] = [
      [[hole.title, seconds], Math.max(name, number), 2 * LINE + 2],
      [[seconds], number, LINE],
    ];
    const lines = fits.find(([, wide, tall]) => wide <= room + OVERHANG && tall <= high);
    if (!lines) continue;
    const [words, width, height] = lines;
    const left = Math.max(hole.x0, 0) + 1;
    const x = width > room ? left + (room - width) / 2 : Math.min(Math.max(hole.x - width / 2, left), left + room - width);
    const y = rect.y + rect.height * (1 - (hole.low + hole.high) / 2) - height / 2;
    if (placed.some((label) => x < label.x + label.width + 2 && label.x < x + width + 2 && y < label.y + label.height && label.y < y + height)) continue;
    placed.push({ hole, lines: words, x, y, width, height });
    if (placed.length === 40) break;
  }
  return placed;
}

/**
 * Draws labels into `rect`: names on the parts' colours, seconds on light pills. `lit`: the one part that stays while
 * the others fade; null = none fades.
 */
export function drawLabels(context: CanvasRenderingContext2D, labels: readonly Label[], rect: Rect, { palette, lit }: Pick<TimeStyle, 'palette' | 'lit'>): void {
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  for (const { hole, lines, x, y, width } of labels) {
    context.globalAlpha = lit === null || lit === hole.part ? 1 : 0.25;
    const middle = rect.x + x + width / 2;
    const seconds = lines[lines.length - 1] as string;
    if (lines.length > 1) {
      context.font = `12px ${palette.font}`;
      context.fillStyle = isDark(palette.hue(hole.part)) ? '#ffffff' : '#16191d';
      context.fillText(lines[0] as string, middle, y + LINE / 2);
    }
    context.font = `600 12px ${palette.font}`;
    const wide = context.measureText(seconds).width + 12;
    const top = y + (lines.length - 1) * (LINE + 2);
    context.fillStyle = 'rgb(255 255 255 / 88%)';
    context.beginPath();
    context.roundRect(middle - wide / 2, top, wide, LINE, 7);
    context.fill();
    context.fillStyle = '#16191d';
    context.fillText(seconds, middle, top + LINE / 2 + 0.5);
  }
  context.globalAlpha = 1;
  context.textAlign = 'left';
}

/** Whether white is easier to read on a colour than black is. */
export function isDark(hex: string): boolean {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255) as [number, number, number];
  return 0.2126 * r ** 2.2 + 0.7152 * g ** 2.2 + 0.0722 * b ** 2.2 < 0.22;
}
