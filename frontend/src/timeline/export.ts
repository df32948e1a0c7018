/** What is shown, as files made in the browser: they need no server and hold what the eye sees. */
import { clean } from '../math/text.ts';
import type { Frame } from './frame.ts';
import { other } from './frame.ts';
import { valueAt } from './readout.ts';
import type { Timeline } from './timeline.ts';

/** Offers `content` as a download named after the run. */
export function download(timeline: Timeline, content: BlobPart, type: string, ending: string): void {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([content], { type }));
  const run = clean(timeline.app.recording?.report.run, 40).replace(/[^\w.-]+/g, '-');
  link.download = `gpu-utilization-${run || 'run'}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A cell of a table: names may hold anything, and must not be taken for a formula. */
const cell = (text: string): string => `"${clean(text, 200).replace(/^(?=[=+\-@])/, "'").replace(/"/g, '""')}"`;

/** All lanes of the layout, bucket by bucket of the present zoom: least, mean and greatest value. */
export function valuesCsv(timeline: Timeline, frame: Frame): string {
  const size = 2 ** frame.level;
  const lanes = timeline.shape.get().layout.rows.flatMap((row) => {
    if (row.type !== 'lane') return [];
    return frame.sources.filter(({ on }) => on === row.source).flatMap((source) => row.lane.series.map((series) => ({ row, source, series })));
  });
  const first = frame.sources[0];
  const stepFirst = frame.axis === 'step';
  const many = frame.sources.length > 1;
  const head = [stepFirst ? 'step' : 'time_s', stepFirst ? 'time_s' : 'step'];
  for (const { row, source, series } of lanes) {
    const name = [many && source.label, row.lane.group !== 'training' && row.lane.group, row.lane.title, row.lane.series.length > 1 && series.title];
    for (const of of ['min', 'mean', 'max']) head.push(cell(`${name.filter(Boolean).join(' ')} ${of} [${row.lane.unit}]`));
  }
  const lines = [head.join(',')];
  const seconds = (ns: number): string => (Number.isFinite(ns) ? String(Math.round(ns / 1e3) / 1e6) : '');
  for (let start = Math.floor(frame.view.start / size) * size; start < frame.view.end; start += size) {
    const far = first ? other(first.tiles, frame.axis, frame.level, start) : NaN;
    const row = stepFirst ? [String(start), seconds(far)] : [seconds(start), Number.isFinite(far) ? String(far) : ''];
    for (const { row: lane, source, series } of lanes) {
      const value = valueAt(source.tiles, frame.axis, frame.level, lane.lane.id, series.name, start - source.shift + size / 2, 0);
      for (const number of value ? [value.min, value.mean, value.max] : [NaN, NaN, NaN]) row.push(Number.isFinite(number) ? String(Number(number.toPrecision(7))) : '');
    }
    lines.push(row.join(','));
  }
  return `${lines.join('\n')}\n`;
}

export async function exportValues(timeline: Timeline): Promise<void> {
  await timeline.fetchEverything();
  if (timeline.frame) download(timeline, valuesCsv(timeline, timeline.frame), 'text/csv', 'csv');
}

/** The reports of the runs that are shown, and which part of them is. */
export function exportReport(timeline: Timeline): void {
  const { frame, app } = timeline;
  if (!frame) return;
  const { measure, selected } = app.state.get();
  const view = { axis: frame.axis, unit: frame.axis === 'step' ? 'steps' : 'ns', ...frame.view, measured: measure, selected };
  const runs = frame.sources.map(({ recording }) => recording.report);
  download(timeline, JSON.stringify({ version: 1, runs, view }, null, 1), 'application/json', 'json');
}
