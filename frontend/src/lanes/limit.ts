/** The limit that a lane's values are measured against. */
import type { LaneInfo } from '../api/types.ts';
import type { Palette } from '../theme/palette.ts';
import type { Rect } from './draw.ts';

/**
 * Draws a thin line across the lane at its limit, and the limit's name; nothing where the limit lies above `top`, the
 * value at the top of `rect`.
 */
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
  drawLimitName(context, limit.title, rect.x + rect.width - 4, y + 5, rect, palette);
}

/** Draws a text that ends at pixel `right`, centred at pixel `y`, on a ground of its own. */
function drawLimitName(context: CanvasRenderingContext2D, text: string, right: number, y: number, rect: Rect, palette: Palette): void {
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
