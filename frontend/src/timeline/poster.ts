/** The first glance as a picture, for a message or a report. */
import { duration, share } from '../math/format.ts';
import { isDark } from '../lanes/time.ts';
import { clauses, headline } from '../state/findings.ts';
import { clean } from '../math/text.ts';
import { budgetOf, timeLane, type Frame } from './frame.ts';
import { drawHead, LANE_TOP, layOutHead } from './head.ts';
import type { Timeline } from './timeline.ts';

type Context = CanvasRenderingContext2D;

/** A text cut to `width` pixels. */
function drawText(context: Context, text: string, x: number, y: number, width: number, size = 12, weight = 400): void {
  context.font = `${weight} ${size}px ${context.canvas.dataset.font}`;
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > width) shown = `${shown.slice(0, -2)}…`;
  context.fillText(shown, x, y);
}

/** A smaller share of the time is hardly seen in the bar, and not named below it. */
export const LEAST_NAMED = 0.005;
const POSTER = { width: 1200, height: 420, margin: 24, lane: 200 };

/**
 * The first glance as a picture of 1200 by 420 (doubled in px): number, sentence, bar of the time's parts, lane of the
 * time; null where there is no lane of time.
 */
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
  drawText(context, share(busy?.seconds ?? 0, budget.known_s), margin, 46, 160, 44, 700);
  drawText(context, lead, margin + 170, 36, room - 170, 21, 650);
  context.fillStyle = palette.muted;
  drawText(context, `${clean(busy?.title ?? 'GPU busy', 30)}, ${duration(budget.known_s)}`, margin, 80, 160, 12);
  drawText(context, rest, margin + 170, 64, room - 170, 14);
  drawText(context, [source.label, source.recording.report.gpus[0]?.name, 'gpu-util-callback'].filter(Boolean).join(' · '), margin + 170, 86, room - 170, 12);
  let x = margin;
  let named = margin;
  for (const { name, title, seconds } of budget.parts) {
    const wide = (room * seconds) / budget.known_s;
    context.fillStyle = palette.hue(name);
    context.fillRect(x, 98, Math.max(1, wide - 1), 28);
    const said = `${clean(title, 40)} ${share(seconds, budget.known_s)}`;
    context.font = `600 12px ${palette.font}`;
    const long = context.measureText(said).width;
    if (long < wide - 8) {
      context.fillStyle = isDark(palette.hue(name)) ? '#ffffff' : '#16191d';
      context.fillText(said, x + (wide - long) / 2, 112);
    } else if (seconds > LEAST_NAMED * budget.known_s && named + long + 14 < width - margin) {
      // Too narrow for its name, which stands below the bar.
      context.fillRect(named, 131, 10, 10);
      context.fillStyle = palette.muted;
      drawText(context, said, named + 14, 136, long);
      named += long + 30;
    }
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
  context.drawImage(piece, margin, 144, room, piece.height / 2);
  return canvas;
}

/** Offers `content` as a download named after the run, with this ending. */
function download(timeline: Timeline, content: BlobPart, type: string, ending: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([content], { type }));
  const run = clean(timeline.app.recording?.report.run, 40).replace(/[^\w.-]+/g, '-');
  link.download = `gpu-utilization-${run || 'run'}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
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
