/** Drawing of one lane's points into a rectangle of a canvas. Coordinates are CSS pixels. */
import type { Points } from './resample.ts';

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

/**
 * Walks ranges of neighbouring points that belong together: at most `limit` ns from one's start to the next one's.
 * `visit` gets each half-open range.
 */
function segments(points: Points, limit: number, visit: (from: number, to: number) => void): void {
  let from = 0;
  for (let i = 1; i <= points.n; i++) {
    if (i < points.n && (points.time[i] as number) - (points.time[i - 1] as number) <= limit) continue;
    visit(from, i);
    from = i;
  }
}

export interface BandStyle {
  colour: string;
  /** Fill between the mean and the floor as well, for quantities that are a share of something. */
  area: boolean;
  top: number;
}

/**
 * Draws the min-max band of series `s` and its mean as a line into `rect`. Between points more than `limit` ns apart it
 * stays empty; values above `style.top` (the value at the top of `rect`) are marked at the edge.
 */
export function drawBand(
  context: CanvasRenderingContext2D,
  points: Points,
  s: number,
  rect: Rect,
  style: BandStyle,
  limit: number,
): void {
  const { min, max, mean } = { min: points.min[s], max: points.max[s], mean: points.mean[s] };
  if (!min || !max || !mean || points.n === 0) return;
  const floor = rect.y + rect.height;
  const scale = rect.height / style.top;
  const y = (value: number): number => floor - Math.max(0, Math.min(value, style.top)) * scale;
  const middle = (i: number): number => rect.x + ((points.x0[i] as number) + (points.x1[i] as number)) / 2;
  // Mean distance of two points, px.
  const spread = points.n > 1 ? ((points.x0[points.n - 1] as number) - (points.x0[0] as number)) / (points.n - 1) : 99;
  // Wide points are single steps or samples: their own dots then say where the measurements are.
  const dots = spread >= 8;
  context.save();
  context.beginPath();
  context.rect(rect.x, rect.y - 2, rect.width, rect.height + 4);
  context.clip();
  context.fillStyle = style.colour;
  context.strokeStyle = style.colour;
  context.lineJoin = 'round';
  segments(points, limit, (from, to) => {
    // Down to the floor.
    if (style.area) {
      context.globalAlpha = 0.1;
      context.beginPath();
      context.moveTo(edgeX(points, from, rect, true), floor);
      for (let i = from; i < to; i++) context.lineTo(middle(i), y(mean[i] as number));
      context.lineTo(edgeX(points, to - 1, rect, false), floor);
      context.fill();
    }
    // A band thinner than its line would not be seen.
    let thick = false;
    for (let i = from; i < to && !thick; i++) thick = ((max[i] as number) - (min[i] as number)) * scale > 0.75;
    // Along the greatest values, and back along the smallest.
    if (thick) {
      context.globalAlpha = 0.3;
      context.beginPath();
      for (let i = from; i < to; i++) {
        const at = y(max[i] as number);
        if (i === from) context.moveTo(edgeX(points, from, rect, true), at);
        context.lineTo(middle(i), at);
        if (i === to - 1) context.lineTo(edgeX(points, i, rect, false), at);
      }
      for (let i = to - 1; i >= from; i--) {
        const at = y(min[i] as number);
        if (i === to - 1) context.lineTo(edgeX(points, i, rect, false), at);
        context.lineTo(middle(i), at);
        if (i === from) context.lineTo(edgeX(points, from, rect, true), at);
      }
      context.fill();
    }
    context.globalAlpha = 1;
    // The mean.
    context.lineWidth = 1.4;
    context.beginPath();
    for (let i = from; i < to; i++) {
      const at = y(mean[i] as number);
      if (i === from) context.moveTo(edgeX(points, from, rect, true), at);
      context.lineTo(middle(i), at);
      if (i === to - 1) context.lineTo(edgeX(points, i, rect, false), at);
    }
    context.stroke();
  });
  if (dots) {
    context.beginPath();
    for (let i = 0; i < points.n; i++) {
      const at = y(mean[i] as number);
      context.moveTo(middle(i) + 2, at);
      context.arc(middle(i), at, 2, 0, Math.PI * 2);
    }
    context.fill();
  }
  context.restore();
  const centre = (i: number): number => middle(i) - 0.5;
  edgeMarks(context, points, rect, centre, (i) => (max[i] as number) > style.top * 1.001 && style.colour);
  edgeMarks(context, points, rect, centre, (i) => (min[i] as number) < style.top * -0.001 && style.colour, true);
}

/**
 * Draws a thin line of the sum of the means of the first `many` series; `top`: the value at the top of `rect`. Gaps
 * longer than `limit` ns stay empty.
 */
export function drawLine(context: CanvasRenderingContext2D, points: Points, many: number, rect: Rect, { colour, top }: { colour: string; top: number }, limit: number): void {
  const series = points.mean.slice(0, many);
  context.strokeStyle = colour;
  context.globalAlpha = 0.5;
  context.lineWidth = 1;
  context.beginPath();
  segments(points, limit, (from, to) => {
    for (let i = from; i < to; i++) {
      const value = series.reduce((all, means) => all + atLeastZero(means, i), 0);
      context.lineTo(rect.x + ((points.x0[i] as number) + (points.x1[i] as number)) / 2, rect.y + rect.height * (1 - Math.min(1, value / top)));
    }
    context.stroke();
    context.beginPath();
  });
  context.globalAlpha = 1;
}

const edgeX = (points: Points, i: number, rect: Rect, left: boolean): number =>
  rect.x + ((left ? points.x0[i] : points.x1[i]) as number);

export interface StackStyle {
  colours: string[];
  top: number;
  /** Pixels a nanosecond is wide, on the time axis; 0 on the step axis. */
  nsWidth: number;
}

/**
 * Draws the parts' means as columns on top of each other, one column a point. A column whose longest step is far above
 * the mean carries a faint spike in the colour of the part that caused it, so that a single slow step is never lost. On
 * the time axis a column is as wide as its step lasts.
 */
export function drawStack(context: CanvasRenderingContext2D, points: Points, rect: Rect, style: StackStyle): void {
  const series = style.colours.length;
  const floor = rect.y + rect.height;
  const scale = rect.height / style.top;
  context.save();
  context.beginPath();
  context.rect(rect.x, rect.y, rect.width, rect.height);
  context.clip();
  // Height of the stack so far, and in the end, as values.
  const base = new Float32Array(points.n);
  const totals = new Float32Array(points.n);
  for (let i = 0; i < points.n; i++) {
    let total = 0;
    for (let s = 0; s < series; s++) total += atLeastZero(points.mean[s], i);
    totals[i] = total;
  }
  // Right edge of each point, px from rect.x.
  const ends = new Float32Array(points.n);
  for (let i = 0; i < points.n; i++) {
    const own = points.x1[i] as number;
    const next = i + 1 < points.n ? (points.x0[i + 1] as number) : Infinity;
    // On the time axis a step lasts as long as its parts, the slowest of several the longest; what follows is no step.
    const slowest = style.nsWidth > 0 && next > own ? (totals[i] as number) + largestExcess(points, i, series).excess : 0;
    const end = Math.min(next, Math.max(own, (points.x0[i] as number) + slowest * 1e6 * style.nsWidth));
    // Buckets tell where a step began to a pixel or so: a gap of less is none.
    ends[i] = next - end < 1.5 ? next : end;
  }
  // Columns wide enough for a gap between them.
  const crisp = points.n > 0 && (points.x1[0] as number) - (points.x0[0] as number) >= 10;
  const inset = crisp ? 0.5 : 0;
  drawSpikes(context, points, rect, style, totals, ends);
  for (let s = 0; s < series; s++) {
    context.fillStyle = style.colours[s] as string;
    context.beginPath();
    let open = -1;
    for (let i = 0; i < points.n; i++) {
      const value = atLeastZero(points.mean[s], i);
      const low = floor - (base[i] as number) * scale;
      base[i] = (base[i] as number) + value;
      const high = floor - (base[i] as number) * scale;
      if (low - high > 0.01) {
        const x = rect.x + (points.x0[i] as number) + inset;
        const width = Math.max(1, rect.x + (ends[i] as number) - inset - x);
        context.rect(x, high, width, low - high);
        open = i;
      }
    }
    if (open >= 0) context.fill();
  }
  context.restore();
  /**
   * Draws small triangles at the top (or, if `below`, the bottom) edge of `rect`, beyond which values lie. `at`: a point's
   * x in px; `mark`: the colour, false = no mark. At most one every 7 px.
   */
  edgeMarks(context, points, rect, (i) => rect.x + (points.x0[i] as number), (i) => {
    const { part, excess } = largestExcess(points, i, series);
    return (totals[i] as number) + excess > style.top * 1.001 && (style.colours[part] as string);
  });
}

/** Value `i`; 0 where it is negative, unknown or missing. */
const atLeastZero = (values: Float32Array | undefined, i: number): number => {
  const value = values ? (values[i] as number) : 0;
  return value > 0 ? value : 0;
};

/** Share of the lane's height by which a longest step must exceed the mean to be drawn: less is scatter. */
const SPIKE_SHARE = 0.15;

/**
 * Draws faint columns up to the longest step of each point, where it is far above the mean. `totals`: the stacks'
 * heights, values of the axis; `ends`: right edge of each point, px from rect.x.
 */
function drawSpikes(
  context: CanvasRenderingContext2D,
  points: Points,
  rect: Rect,
  style: StackStyle,
  totals: Float32Array,
  ends: Float32Array,
): void {
  const floor = rect.y + rect.height;
  const scale = rect.height / style.top;
  context.globalAlpha = 0.4;
  for (let i = 0; i < points.n; i++) {
    const { part, excess } = largestExcess(points, i, style.colours.length);
    if (excess <= SPIKE_SHARE * style.top) continue;
    context.fillStyle = style.colours[part] as string;
    const height = ((totals[i] as number) + excess) * scale;
    const x = rect.x + (points.x0[i] as number);
    context.fillRect(x, floor - height, Math.max(1, rect.x + (ends[i] as number) - x), height);
  }
  context.globalAlpha = 1;
}

/** The part whose longest step is farthest above its mean in point `i`, and by how much (a value of the axis, 0 or more). */
export function largestExcess(points: Points, i: number, series: number): { part: number; excess: number } {
  let part = 0;
  let excess = 0;
  for (let s = 0; s < series; s++) {
    const over = atLeastZero(points.max[s], i) - atLeastZero(points.mean[s], i);
    if (over > excess) {
      excess = over;
      part = s;
    }
  }
  return { part, excess };
}

/** Small triangles at the edge beyond which values lie, in the colour that `mark` gives, at most one every 7 pixels. */
function edgeMarks(
  context: CanvasRenderingContext2D,
  points: Points,
  rect: Rect,
  at: (i: number) => number,
  mark: (i: number) => string | false,
  below = false,
): void {
  const [edge, tip] = below ? [rect.y + rect.height - 2, 6] : [rect.y + 1, -6];
  let last = -Infinity;
  for (let i = 0; i < points.n; i++) {
    const colour = mark(i);
    const x = at(i);
    if (!colour || x - last < 7 || x < rect.x - 3 || x > rect.x + rect.width + 3) continue;
    last = x;
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(x - 3.5, edge);
    context.lineTo(x + 4.5, edge);
    context.lineTo(x + 0.5, edge + tip);
    context.fill();
  }
}
