/** A picture of the view: verdict, axes and every lane of the layout with its name, also those scrolled away. */
import { colourOf } from '../lanes/colours.ts';
import type { LaneRow, Layout } from '../lanes/layout.ts';
import { duration, scaleOf, share } from '../math/format.ts';
import { isDark } from '../lanes/time.ts';
import { clauses, headline } from '../state/findings.ts';
import { toPixel } from '../math/range.ts';
import { clean } from '../math/text.ts';
import { factsLine } from '../words/labels.ts';
import { drawBody, type LaneScale } from './body.ts';
import { download } from './export.ts';
import { budgetOf, timeLane, type Frame } from './frame.ts';
import { AXIS_TOP, axisLabel, axisTicks, drawHead, LANE_TOP, layOutHead, type Head } from './head.ts';
import type { Timeline } from './timeline.ts';

const LABEL = 216;
/** Of the label's room, the part at its right end that holds the numbers of the vertical axis. */
const NUMBERS = 62;
const TITLE = 64;
const MARGIN = 16;
const AXIS = 42;
const MAX_HEIGHT = 12000;

export const axisTitle = ({ axis, clock }: Pick<Frame, 'axis' | 'clock'>): string =>
  axis === 'step' ? 'step' : clock ? 'time of day' : 'time since the recording began (h:min:s)';

type Context = CanvasRenderingContext2D;

function write(context: Context, text: string, x: number, y: number, width: number, size = 12, weight = 400): void {
  context.font = `${weight} ${size}px ${context.canvas.dataset.font}`;
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > width) shown = `${shown.slice(0, -2)}…`;
  context.fillText(shown, x, y);
}

/** What stands in front of the rows of the head. */
function nameHead(context: Context, frame: Frame, head: Head, top: number): void {
  context.fillStyle = frame.palette.muted;
  const names: [string, number][] = [[axisTitle(frame).replace(/ \(.*/, ''), AXIS_TOP + 7]];
  for (const { lane, source, top, height } of head.times) {
    names.push([clean(lane.title, 40), top + 10]);
    if (head.times.length > 1) names.push([source.label, top + 26]);
    else if (height > 100) lane.series.forEach(({ title }, s) => names.push([clean(title, 40), top + 30 + s * 15]));
  }
  if (frame.waits) names.push([`workers wait for worker ${frame.waits.rank}`, head.ranksTop + (head.ranks.length * head.rankHeight) / 2]);
  if (head.phases.length + head.epochs.length > 0) names.push(['phases', head.phasesTop + 7]);
  if (head.windows.length > 0) names.push(['profiler windows', head.windowsTop + 7]);
  for (const [name, y] of names) write(context, name, MARGIN, top + y, LABEL - 10);
}

/** A lane's name, its run, its legend, and its vertical axis from zero to the top of its scale. */
function nameLane(context: Context, frame: Frame, row: LaneRow, scale: LaneScale, y: number): void {
  const { palette } = frame;
  const { unit, number } = scaleOf(scale.top, row.lane.unit);
  const left = MARGIN + LABEL;
  const room = LABEL - NUMBERS - 6;
  context.fillStyle = palette.text;
  write(context, `${clean(row.lane.title, 60)}${unit && ` [${unit}]`}`, MARGIN, y + 12, room);
  context.fillStyle = palette.muted;
  let line = y + 26;
  if (row.origin) {
    write(context, row.origin, MARGIN, line, room, 10.5);
    line += 13;
  }
  if (row.whole.series.length > 1)
    for (const { name, title } of [...row.lane.series].reverse()) {
      if (line > y + row.height - 4) break;
      context.fillStyle = palette.hue(colourOf(row.whole, name));
      context.fillRect(MARGIN, line - 4, 8, 8);
      context.fillStyle = palette.muted;
      write(context, clean(title, 40), MARGIN + 13, line, room - 13, 10.5);
      line += 13;
    }
  context.textAlign = 'right';
  write(context, number(scale.top), left - 7, y + 11, NUMBERS, 11);
  write(context, '0', left - 7, y + row.height - 7, NUMBERS, 11);
  context.textAlign = 'left';
  context.fillStyle = palette.strongLine;
  context.fillRect(left - 1, y + 7, 1, row.height - 11);
  for (const at of [y + 7, y + row.height - 5]) context.fillRect(left - 5, at, 4, 1);
}

/** The horizontal axis again, below the lanes. */
function drawFoot(context: Context, frame: Frame, y: number): void {
  const { palette, view, width } = frame;
  const ticks = axisTicks(frame);
  const left = MARGIN + LABEL;
  context.fillStyle = palette.strongLine;
  context.fillRect(left, y, width, 1);
  context.textAlign = 'center';
  for (const value of ticks.values) {
    const x = toPixel(view, width, value);
    if (x < 0 || x > width) continue;
    context.fillStyle = palette.strongLine;
    context.fillRect(left + x, y, 1, 5);
    context.fillStyle = palette.muted;
    write(context, axisLabel(frame, value, ticks.step), left + x, y + 13, 90, 11);
  }
  context.fillStyle = palette.text;
  write(context, axisTitle(frame), left + width / 2, y + 31, width, 12);
  context.textAlign = 'left';
}

/** The whole picture on a canvas of its own; null where the browser gives none. */
export function picture(frame: Frame, layout: Layout): HTMLCanvasElement | null {
  const source = frame.sources[0];
  const canvas = document.createElement('canvas');
  const context = canvas.getContext('2d');
  if (!source || !context) return null;
  const head = layOutHead(source, frame);
  const body = Math.min(layout.height, MAX_HEIGHT);
  const width = LABEL + frame.width + 2 * MARGIN;
  const height = TITLE + head.height + body + AXIS + 2 * MARGIN;
  const scale = Math.min(2, 16000 / height);
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const { palette } = frame;
  canvas.dataset.font = palette.font;
  context.scale(scale, scale);
  context.fillStyle = palette.bg;
  context.fillRect(0, 0, width, height);
  context.textBaseline = 'middle';
  context.fillStyle = palette.text;
  write(context, clean(source.recording.report.verdict, 300), MARGIN, MARGIN + 12, width - 2 * MARGIN, 17, 600);
  context.fillStyle = palette.muted;
  const runs = frame.sources.map(({ label }) => label).join(', ');
  write(context, [runs, ...factsLine(source.recording.report)].join(' · '), MARGIN, MARGIN + 36, width - 2 * MARGIN);

  const part = (high: number): Context => {
    const piece = document.createElement('canvas');
    piece.width = Math.round(frame.width * scale);
    piece.height = Math.max(1, Math.round(high * scale));
    const drawing = piece.getContext('2d') as Context;
    drawing.scale(scale, scale);
    return drawing;
  };
  const left = MARGIN + LABEL;
  const top = MARGIN + TITLE;
  const above = part(head.height);
  drawHead(above, frame, head);
  context.drawImage(above.canvas, left, top, frame.width, head.height);
  nameHead(context, frame, head, top);
  const lanes = part(body);
  const scales = drawBody(lanes, frame, layout, 0, body);
  const first = top + head.height;
  context.drawImage(lanes.canvas, left, first, frame.width, body);
  for (const row of layout.rows) {
    if (row.top + row.height > body) break;
    const y = first + row.top;
    const laneScale = scales.get(row.key);
    if (row.type === 'group') {
      context.fillStyle = palette.stripe;
      context.fillRect(MARGIN, y, LABEL, row.height);
      context.fillStyle = palette.text;
      write(context, row.title, MARGIN + 4, y + row.height / 2, LABEL + frame.width, 12, 600);
    } else if (laneScale) nameLane(context, frame, row, laneScale, y);
  }
  drawFoot(context, frame, first + body);
  return canvas;
}

const POSTER = { width: 1200, height: 420, margin: 24, lane: 200 };

/** The first glance as a picture of 1200 by 420: number, sentence, bar, lane. */
export function poster({ frame, app }: Timeline): HTMLCanvasElement | null {
  const source = frame?.sources[0];
  const lane = source && timeLane(source.recording, frame.gpus[source.id]);
  const budget = source && budgetOf(source.recording, lane?.id);
  const canvas = document.createElement('canvas');
  const context = canvas.getContext('2d');
  if (!frame || !source || !lane || !budget || !context) return null;
  const { palette } = frame;
  const { width, height, margin } = POSTER;
  [canvas.width, canvas.height] = [2 * width, 2 * height];
  canvas.dataset.font = palette.font;
  context.scale(2, 2);
  context.fillStyle = palette.bg;
  context.fillRect(0, 0, width, height);
  context.textBaseline = 'middle';
  const room = width - 2 * margin;
  const busy = budget.parts.find(({ name }) => name === 'busy');
  const [lead, , rest] = clauses(headline(source.recording.report, app.state.get().job).text);
  context.fillStyle = palette.text;
  write(context, share(busy?.seconds ?? 0, budget.known_s), margin, 46, 160, 44, 700);
  write(context, lead, margin + 170, 36, room - 170, 21, 650);
  context.fillStyle = palette.muted;
  write(context, `${clean(busy?.title ?? 'GPU busy', 30)}, ${duration(budget.known_s)}`, margin, 80, 160, 12);
  write(context, rest, margin + 170, 64, room - 170, 14);
  write(context, [source.label, source.recording.report.gpus[0]?.name, 'gpu-util-callback'].filter(Boolean).join(' · '), margin + 170, 86, room - 170, 12);
  let x = margin;
  for (const { name, title, seconds } of budget.parts) {
    const wide = (room * seconds) / budget.known_s;
    context.fillStyle = palette.hue(name);
    context.fillRect(x, 100, Math.max(1, wide - 1), 28);
    context.fillStyle = isDark(palette.hue(name)) ? '#ffffff' : '#16191d';
    const [text, percent] = [`${clean(title, 40)} ${share(seconds, budget.known_s)}`, share(seconds, budget.known_s)];
    context.font = `600 12px ${palette.font}`;
    const said = [text, percent].find((one) => context.measureText(one).width < wide - 8);
    if (said) context.fillText(said, x + (wide - context.measureText(said).width) / 2, 114);
    x += wide;
  }
  const own: Frame = { ...frame, width: room, sources: [source], selected: null, lit: null, waits: null, measure: null };
  const piece = document.createElement('canvas');
  const head = { ...layOutHead(source, own), gpus: [], ranks: [], phases: [], epochs: [], windows: [] };
  const times = head.times.map((row) => ({ ...row, height: POSTER.lane + 40 }));
  [piece.width, piece.height] = [2 * room, 2 * (LANE_TOP + POSTER.lane + 40)];
  const drawing = piece.getContext('2d') as Context;
  drawing.scale(2, 2);
  drawHead(drawing, own, { ...head, times, height: piece.height / 2 });
  context.drawImage(piece, margin, 138, room, piece.height / 2);
  return canvas;
}

/** Puts the first glance on the clipboard; where that takes no pictures, into a file. */
export async function copyPicture(timeline: Timeline): Promise<void> {
  const canvas = poster(timeline);
  const blob = canvas && (await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, 'image/png')));
  if (!blob) return timeline.app.notice('The picture could not be made');
  try {
    await navigator.clipboard.write([new ClipboardItem({ 'image/png': blob })]);
    timeline.app.notice('Picture copied');
  } catch {
    download(timeline, blob, 'image/png', 'png');
  }
}

export async function exportPng(timeline: Timeline): Promise<void> {
  await timeline.fetchEverything();
  const canvas = timeline.frame && picture(timeline.frame, timeline.shape.get().layout);
  const blob = canvas && (await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, 'image/png')));
  if (blob) download(timeline, blob, 'image/png', 'png');
  else timeline.app.notice('The picture could not be made: the view is too large');
}
