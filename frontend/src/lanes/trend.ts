/** What a lane's values are measured against: its limit, and the line on which they grow towards it. */
import type { LaneInfo } from '../api/types.ts';
import { toPixel, type Range } from '../math/range.ts';
import type { Palette } from '../theme/palette.ts';
import type { Axis } from '../tiles/request.ts';
import type { Rect } from './draw.ts';

export interface Line {
  x0: number;
  y0: number;
  x1: number;
  y1: number;
}

/** The line of a lane's growth in pixels, from where it began to where it meets the limit; null outside of the view. */
export function trendLine(lane: LaneInfo, axis: Axis, origin: number, view: Range, rect: Rect, top: number): Line | null {
  const { trend } = lane;
  if (!trend || top <= 0) return null;
  const [from, to] = axis === 'time' ? [trend.start_ns - origin, trend.end_ns - origin] : [trend.start_step, trend.end_step];
  if (!(to > from) || to < view.start || from > view.end) return null;
  const y = (value: number): number => rect.y + rect.height * (1 - value / top);
  return {
    x0: rect.x + toPixel(view, rect.width, from), y0: y(trend.start_value),
    x1: rect.x + toPixel(view, rect.width, to), y1: y(trend.end_value),
  };
}

/** A dashed line with the word "estimate" beside it: it was not measured. */
export function drawTrend(context: CanvasRenderingContext2D, line: Line, title: string, rect: Rect, palette: Palette): void {
  context.save();
  context.beginPath();
  context.rect(rect.x, rect.y - 2, rect.width, rect.height + 4);
  context.clip();
  context.strokeStyle = palette.text;
  context.lineWidth = 1.5;
  context.setLineDash([5, 4]);
  context.beginPath();
  context.moveTo(line.x0, line.y0);
  context.lineTo(line.x1, line.y1);
  context.stroke();
  context.restore();
  label(context, `estimate: ${title}`, Math.min(line.x1, rect.x + rect.width) - 4, rect.y + 8, rect, palette);
}

/** A thin line across the lane at the limit, and its name. */
export function drawLimit(context: CanvasRenderingContext2D, lane: LaneInfo, rect: Rect, top: number, palette: Palette): void {
  const { limit } = lane;
  if (!limit || top <= 0 || limit.value > top * 1.001) return;
  const y = Math.round(rect.y + rect.height * (1 - limit.value / top)) + 0.5;
  context.save();
  context.strokeStyle = palette.text;
  context.globalAlpha = 0.5;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(rect.x, y);
  context.lineTo(rect.x + rect.width, y);
  context.stroke();
  context.restore();
  label(context, limit.title, rect.x + rect.width - 4, y + 5, rect, palette);
}

function label(context: CanvasRenderingContext2D, text: string, right: number, y: number, rect: Rect, palette: Palette): void {
  context.save();
  context.font = `10px ${palette.font}`;
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  const wide = context.measureText(text).width + 4;
  const at = Math.max(rect.x + wide, right);
  context.globalAlpha = 0.8;
  context.fillStyle = palette.bg;
  context.fillRect(at - wide, y - 6, wide, 12);
  context.globalAlpha = 1;
  context.fillStyle = palette.text;
  context.fillText(text, at - 2, y);
  context.restore();
}
