/** A picture of the view: verdict, axis and every lane of the layout, also those scrolled away. */
import type { LaneInfo } from '../api/types.ts';
import { withUnit } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { factsLine } from '../words/labels.ts';
import { seriesColour } from '../words/accounts.ts';
import { drawBody } from './body.ts';
import { download } from './export.ts';
import type { Frame } from './frame.ts';
import { drawHead, layOutHead } from './head.ts';
import type { Timeline } from './timeline.ts';

const LABEL = 160;
const TITLE = 64;
const MARGIN = 16;
const MAX_HEIGHT = 12000;

function drawLegend(context: CanvasRenderingContext2D, frame: Frame, lane: LaneInfo, top: number): void {
  [...lane.series].reverse().forEach(({ name, title }, i) => {
    context.fillStyle = frame.palette.hue(seriesColour(name));
    context.fillRect(MARGIN, top + i * 14 - 4, 8, 8);
    context.fillStyle = frame.palette.muted;
    context.fillText(clean(title || name, 40), MARGIN + 13, top + i * 14, LABEL - 24);
  });
}

export async function exportPng(timeline: Timeline): Promise<void> {
  await timeline.fetchEverything();
  const { frame } = timeline;
  const source = frame?.sources[0];
  if (!frame || !source) return;
  const { layout } = timeline.shape.get();
  const head = layOutHead(source, frame);
  const body = Math.min(layout.height, MAX_HEIGHT);
  const width = LABEL + frame.width + 2 * MARGIN;
  const height = TITLE + head.height + body + 2 * MARGIN;
  const scale = Math.min(2, 16000 / height);
  const canvas = document.createElement('canvas');
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext('2d');
  if (!context) return;
  const { palette } = frame;
  context.scale(scale, scale);
  context.fillStyle = palette.bg;
  context.fillRect(0, 0, width, height);
  context.textBaseline = 'middle';
  context.fillStyle = palette.text;
  context.font = `600 17px ${palette.font}`;
  context.fillText(clean(source.recording.report.verdict, 200), MARGIN, MARGIN + 12, width - 2 * MARGIN);
  context.fillStyle = palette.muted;
  context.font = `12px ${palette.font}`;
  context.fillText([source.label, ...factsLine(source.recording.report)].join(' · '), MARGIN, MARGIN + 36, width - 2 * MARGIN);

  const part = (height_: number): CanvasRenderingContext2D => {
    const piece = document.createElement('canvas');
    piece.width = Math.round(frame.width * scale);
    piece.height = Math.max(1, Math.round(height_ * scale));
    const drawing = piece.getContext('2d') as CanvasRenderingContext2D;
    drawing.scale(scale, scale);
    return drawing;
  };
  const left = MARGIN + LABEL;
  const top = MARGIN + TITLE;
  const above = part(head.height);
  drawHead(above, frame, head);
  context.drawImage(above.canvas, left, top, frame.width, head.height);
  const lanes = part(body);
  const scales = drawBody(lanes, frame, layout, 0, body);
  context.drawImage(lanes.canvas, left, top + head.height, frame.width, body);
  for (const row of layout.rows) {
    const y = top + head.height + row.top;
    if (row.top + row.height > body) break;
    context.fillStyle = palette.text;
    context.font = row.type === 'group' ? `600 12px ${palette.font}` : `12px ${palette.font}`;
    const title = row.type === 'group' ? row.title : clean(row.lane.title, 60);
    context.fillText(title, MARGIN, y + 12, row.type === 'group' ? LABEL + frame.width : LABEL - 10);
    const laneScale = scales.get(row.key);
    if (row.type === 'lane' && laneScale) {
      context.fillStyle = palette.muted;
      context.font = `11px ${palette.font}`;
      context.fillText(`0–${withUnit(laneScale.top, row.lane.unit)}`, MARGIN, y + 27, LABEL - 10);
      if (row.lane.kind === 'stack') drawLegend(context, frame, row.lane, y + 44);
    }
  }
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, 'image/png'));
  if (!blob) {
    timeline.app.notice('The picture could not be made: the view is too large');
    return;
  }
  download(timeline, blob, 'image/png', 'png');
}
