/** Where a recording broke off: a line through its lanes, and what happened, in words. */
import type { Layout } from '../lanes/layout.ts';
import { elapsed, plural } from '../math/format.ts';
import { toPixel } from '../math/range.ts';
import { statusOf } from '../words/labels.ts';
import type { Frame, Source } from './frame.ts';

/** Place of the end on the frame's axis; null where the recording did not break off. */
export function brokeOffAt(frame: Pick<Frame, 'axis'>, source: Pick<Source, 'recording' | 'shift'>): number | null {
  const { extent, report } = source.recording;
  if (report.status !== 'lost' && report.status !== 'interrupted') return null;
  return source.shift + (frame.axis === 'step' ? extent.last_step + 1 : extent.end_ns - extent.start_ns);
}

/** "lost after 231 steps · 0:12" */
export function brokeOffText(source: Pick<Source, 'recording'>): string {
  const { extent, report } = source.recording;
  const steps = extent.last_step + 1 - extent.first_step;
  return `${statusOf(report.status).title} after ${plural(steps, 'step')} · ${elapsed(extent.end_ns - extent.start_ns, 1e9)}`;
}

/**
 * Draws a dashed line with its words through the lanes in sight where each source's recording broke off. `scroll`: px by
 * which the lanes are scrolled; `height`: of the canvas, px.
 */
export function drawEnds(context: CanvasRenderingContext2D, frame: Frame, layout: Layout, scroll: number, height: number): void {
  const { palette, view, width } = frame;
  for (const source of frame.sources) {
    const at = brokeOffAt(frame, source);
    if (at === null) continue;
    const x = Math.min(toPixel(view, width, at), at >= view.end ? width - 1 : Infinity);
    if (x < 0 || at > view.end * (1 + 1e-9)) continue;
    const lanes = layout.rows.filter((row) => row.type === 'lane' && row.source === source.rowOwner && row.top - scroll <= height && row.top + row.height - scroll >= 0);
    const first = lanes[0];
    if (!first) continue;
    context.strokeStyle = palette.text;
    context.lineWidth = 2;
    context.setLineDash([5, 3]);
    context.beginPath();
    for (const row of lanes) {
      context.moveTo(x, row.top - scroll);
      context.lineTo(x, row.top + row.height - scroll);
    }
    context.stroke();
    context.setLineDash([]);
    const text = brokeOffText(source);
    context.font = `600 11px ${palette.font}`;
    context.textBaseline = 'top';
    const size = context.measureText(text).width + 10;
    const left = x + size + 4 < width ? x + 4 : x - size - 4;
    context.fillStyle = palette.bg;
    context.globalAlpha = 0.85;
    context.fillRect(left, first.top - scroll + 3, size, 17);
    context.globalAlpha = 1;
    context.fillStyle = palette.text;
    context.fillText(text, left + 5, first.top - scroll + 6);
  }
}
