/** What moves with the pointer: crosshair with its flag, and the measured range. */
import { elapsed, count, clock, plural, seconds } from '../math/format.ts';
import { span, toPixel } from '../math/range.ts';
import type { Frame } from './frame.ts';
import { otherAxisValue } from './frame.ts';
import { AXIS_TOP, LANE_TOP } from './head.ts';

/** Both coordinates of the place `at` (units of the axis) in words, whatever the axis: "step 2,688 · 5:03". */
export function placeText(frame: Frame, at: number): string {
  const source = frame.sources[0];
  const second = source ? otherAxisValue(source.tiles, frame.axis, frame.level, at) : NaN;
  const [step, ns] = frame.axis === 'step' ? [at, second] : [second, at];
  const parts: string[] = [];
  if (Number.isFinite(step)) parts.push(`step ${count(Math.floor(step))}`);
  if (Number.isFinite(ns)) {
    const resolution = frame.axis === 'time' ? Math.min(1e9, span(frame.view) / 200) : 1e9;
    const start = source?.recording.extent.start_ns ?? 0;
    parts.push(frame.clock ? clock(start + ns, Math.max(resolution, 1e6)) : elapsed(ns, resolution));
  }
  return parts.join(' · ');
}

/**
 * Draws what moves with the pointer: the measured or dragged range with its length, and the crosshair with its place.
 * `cursor` and `drag` are in units of the axis, null = none; `height`: of the canvas, px.
 */
export function drawOverlay(
  context: CanvasRenderingContext2D,
  frame: Frame,
  height: number,
  cursor: number | null,
  drag: { start: number; end: number } | null,
): void {
  const { palette, view, width } = frame;
  context.clearRect(0, 0, width, height);
  // A range that is being dragged comes before the one measured.
  const measure = drag ?? frame.measure;
  if (measure) {
    const left = toPixel(view, width, Math.min(measure.start, measure.end));
    const right = toPixel(view, width, Math.max(measure.start, measure.end));
    context.fillStyle = palette.accent;
    context.globalAlpha = 0.13;
    context.fillRect(left, AXIS_TOP, right - left, height - AXIS_TOP);
    context.globalAlpha = 1;
    for (const x of [left, right - 1]) context.fillRect(Math.round(x), AXIS_TOP, 1, height);
    const size = Math.abs(measure.end - measure.start);
    const text = frame.axis === 'step' ? plural(Math.round(size), 'step') : seconds(size / 1e9);
    drawFlag(context, frame, (left + right) / 2, LANE_TOP + 3, text, palette.accent, palette.bg);
  }
  if (cursor === null) return;
  const x = toPixel(view, width, cursor);
  if (x < -1 || x > width + 1) return;
  context.strokeStyle = palette.text;
  context.globalAlpha = 0.75;
  context.lineWidth = 1;
  context.setLineDash([3, 3]);
  context.beginPath();
  context.moveTo(Math.round(x) + 0.5, LANE_TOP);
  context.lineTo(Math.round(x) + 0.5, height);
  context.stroke();
  context.setLineDash([]);
  context.globalAlpha = 1;
  drawFlag(context, frame, x, AXIS_TOP - 3, placeText(frame, cursor), palette.inverse, palette.onInverse);
}

/** Draws a text on a coloured ground, centred at pixel `x` where there is room; `y`: its upper edge, px. */
function drawFlag(
  context: CanvasRenderingContext2D,
  frame: Frame,
  x: number,
  y: number,
  text: string,
  background: string,
  colour: string,
): void {
  context.font = `600 11px ${frame.palette.font}`;
  const width = context.measureText(text).width + 14;
  const left = Math.min(Math.max(x - width / 2, 0), Math.max(0, frame.width - width));
  context.fillStyle = background;
  context.beginPath();
  context.roundRect(left, y, width, 19, 4);
  context.fill();
  context.fillStyle = colour;
  context.textBaseline = 'middle';
  context.fillText(text, left + 7, y + 10);
}
