/** The same as on the canvas, as tables: phases, and what the visible buckets of each lane hold. */
import type { RecordingReply } from '../api/types.ts';
import { phaseTitle } from '../lanes/spans.ts';
import { count, nanoseconds, withUnit } from '../math/format.ts';
import { span } from '../math/range.ts';
import { axisLabel, isSum } from '../timeline/head.ts';
import { valueOver } from '../timeline/readout.ts';
import { laneTitle, seriesTitle } from '../words/labels.ts';
import { useApp, useSelect, useTab } from './hooks.ts';
import { ScrolledTable } from './table.tsx';

const ROWS = 20;
const PHASES = 100;

/** The timeline as tables, for those who cannot see it, and the number of hidden lanes. */
export function Tables({ recording }: { recording: RecordingReply }) {
  const { app } = useTab();
  const open = useApp((state) => state.tables);
  const hidden = useApp((state) => state.hidden.size);
  if (!open && hidden === 0) return null;
  return (
    <section class="tables">
      {hidden > 0 && (
        <button type="button" class="linklike" onClick={() => app.showHidden()}>
          {count(hidden)} hidden: show
        </button>
      )}
      {open && <PhaseTable recording={recording} />}
      {open && <BucketTable />}
    </section>
  );
}

/** Epochs, validations, callbacks, windows: what is drawn between the steps. */
function PhaseTable({ recording }: { recording: RecordingReply }) {
  const drawn = recording.phases.filter((phase) => phase.kind !== 'fit' && !isSum(phase));
  const shown = [...drawn].sort((a, b) => b.end_ns - b.start_ns - a.end_ns + a.start_ns).slice(0, PHASES).sort((a, b) => a.start_ns - b.start_ns);
  if (shown.length === 0) return null;
  return (
    <ScrolledTable name="Phases" caption={`Phases${drawn.length > PHASES ? `, the ${PHASES} longest of ${count(drawn.length)}` : ''}`} heads={['phase', 'from', 'length']}>
      {shown.map((phase, i) => (
        <tr key={i}>
          <th scope="row">
            <bdi>{phaseTitle(phase)}</bdi>
          </th>
          <td>{nanoseconds(phase.start_ns - recording.extent.start_ns)}</td>
          <td>{nanoseconds(phase.end_ns - phase.start_ns)}</td>
        </tr>
      ))}
    </ScrolledTable>
  );
}

/** Means of each series over equal parts of the range in view. */
function BucketTable() {
  const { timeline } = useTab();
  useSelect(timeline.drawn, (value) => value.count);
  const { frame } = timeline;
  const source = frame?.sources[0];
  if (!frame || !source) return null;
  const { axis, view, level } = frame;
  // A column for each series; a stack's sum stands before its parts.
  const columns = timeline.shape.get().layout.rows.flatMap((row) => {
    if (row.type !== 'lane' || row.source !== source.id) return [];
    const { lane, key } = row;
    const each = lane.series.map((seriesInfo) => ({ key: `${key} ${seriesInfo.name}`, lane, title: seriesTitle(lane, seriesInfo), series: [seriesInfo] }));
    return lane.kind === 'stack' ? [{ key, lane, title: laneTitle(lane), series: lane.series }, ...each] : each;
  });
  const length = span(view) / ROWS;
  const caption = `What is in view, in ${ROWS} equal parts: averages over ${axis === 'step' ? `${count(Math.round(length * 10) / 10)} steps` : nanoseconds(length)}`;
  const rows = Array.from({ length: ROWS }, (_, i) => ({ start: view.start + i * length, end: view.start + (i + 1) * length }));
  return (
    <ScrolledTable name="Visible lanes" caption={caption} heads={[axis === 'step' ? 'from step' : 'from', ...columns.map(({ title }) => title)]}>
      {rows.map((range, i) => (
        <tr key={i}>
          <th scope="row">{axisLabel(frame, range.start, Math.min(1e9, length))}</th>
          {columns.map(({ key, lane, series }) => {
            const means = series.flatMap(({ name }) => valueOver(source.tiles, axis, level, lane, name, range)?.mean ?? []);
            return <td key={key}>{means.length > 0 && withUnit(means.reduce((sum, tileCount) => sum + tileCount, 0), lane.unit)}</td>;
          })}
        </tr>
      ))}
    </ScrolledTable>
  );
}
