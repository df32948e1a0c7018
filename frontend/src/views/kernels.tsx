/** The kernels of the open profiler window; on a window of the host alone, its busiest ops. */
import { useMemo, useState } from 'preact/hooks';
import { isOffline, kernelsUrl } from '../api/client.ts';
import type { RecordingReply } from '../api/types.ts';
import { count, nanoseconds, percent, short, UNKNOWN } from '../math/format.ts';
import { filterKernels, kernelRows, kernelsOfStep, sortKernels, type KernelRow, type SortKey } from '../math/kernels.ts';
import { clean } from '../math/text.ts';
import { useApp } from './hooks.ts';
import { Small } from './small.tsx';
import { useWindow, windowSteps } from './window.tsx';

const SHOWN = 100;

interface Column {
  key: SortKey;
  title: string;
  hint: string;
  text?: boolean;
  value: (row: KernelRow) => string;
}

const valueText = (value: number | null, write: (value: number) => string): string => (value === null ? UNKNOWN : write(value));
const COUNT: Column = { key: 'count', title: 'calls', hint: 'how often it ran', value: ({ kernel }) => count(kernel.count) };
const TOTAL: Column = { key: 'total', title: 'total', hint: 'time of all its calls', value: ({ kernel }) => nanoseconds(kernel.total_ns) };
const MEAN: Column = { key: 'mean', title: 'avg', hint: 'of a call', value: ({ mean }) => nanoseconds(mean) };
const LONGEST: Column = { key: 'longest', title: 'longest', hint: 'of its calls', value: ({ kernel }) => nanoseconds(kernel.max_ns) };

const SHARE = (of: string): Column => ({ key: 'share', title: 'share', hint: `of ${of}`, value: ({ share }) => valueText(share, (v) => percent(100 * v)) });

// What tells the slowest comes first: the rest may be out of sight to the right.
const GPU_COLUMNS: Column[] = [
  { key: 'name', title: 'kernel', hint: 'its name', text: true, value: ({ kernel }) => clean(kernel.name, 400) || UNKNOWN },
  TOTAL,
  SHARE("its GPU's kernel time listed"),
  COUNT,
  MEAN,
  LONGEST,
  { key: 'gpu', title: 'GPU', hint: 'which GPU ran it', value: ({ kernel }) => String(kernel.gpu) },
  { key: 'op', title: 'op or layer', hint: 'what launched it', text: true, value: ({ kernel }) => clean(kernel.op, 200) || UNKNOWN },
  { key: 'occupancy', title: 'occupancy', hint: 'theoretical: warps that can be resident, of those the GPU has room for', value: ({ kernel }) => percent(kernel.occupancy_pct) },
  { key: 'tensor', title: 'tensor cores', hint: 'whether it computes on tensor cores, by its name', text: true, value: ({ kernel }) => clean(kernel.tensor_core, 12) || 'unknown' },
  { key: 'registers', title: 'registers', hint: 'of a thread', value: ({ kernel }) => valueText(kernel.registers, short) },
  {
    key: 'grid', title: 'grid', hint: 'blocks × threads of a block',
    value: ({ kernel }) => (kernel.blocks === null ? UNKNOWN : `${count(kernel.blocks)} × ${valueText(kernel.threads_per_block, count)}`),
  },
];

const HOST_COLUMNS: Column[] = [
  { key: 'name', title: 'op', hint: 'its name', text: true, value: ({ kernel }) => clean(kernel.name, 400) || UNKNOWN },
  TOTAL,
  SHARE('the time of the ops listed'),
  COUNT,
  MEAN,
  LONGEST,
  { key: 'op', title: 'kind', hint: 'what it computes', text: true, value: ({ kernel }) => clean(kernel.op, 200) || UNKNOWN },
];

export function Kernels({ recording }: { recording: RecordingReply }) {
  const window = useApp((state) => state.window?.number ?? null);
  return window === null ? null : <KernelTable key={`${recording.id} ${window}`} recording={recording} window={window} />;
}

/** The kernels of a profiler window, or of the traced step that is open: sorted, filtered, those with most time first. */
function KernelTable({ recording, window }: { recording: RecordingReply; window: number }) {
  const { reply } = useWindow(recording, window);
  const [sort, setSort] = useState<{ key: SortKey; descending: boolean }>({ key: 'total', descending: true });
  const [text, setText] = useState('');
  const [gpu, setGpu] = useState<number | null>(null);
  const [all, setAll] = useState(false);
  const [whole, setWhole] = useState(false);
  const [roomy, setRoomy] = useState(false);
  const step = useApp((state) => state.window?.step ?? null);
  const ofStep = useMemo(() => (reply && step !== null ? kernelsOfStep(reply, step) : null), [reply, step]);
  const ofWindow = useMemo(() => (reply ? kernelRows(reply.kernels, reply.kernel_total_ns) : []), [reply]);
  const rows = ofStep && !whole ? ofStep : ofWindow;
  const matches = useMemo(() => sortKernels(filterKernels(rows, text, gpu), sort.key, sort.descending), [rows, text, gpu, sort]);
  if (!reply) return null;
  const gpus = [...new Set(rows.map(({ kernel }) => kernel.gpu))].sort((a, b) => a - b);
  const host = gpus.length > 0 ? gpus.every((index) => index < 0) : reply.steps.every((row) => row.gpu < 0);
  const columns = (host ? HOST_COLUMNS : GPU_COLUMNS).filter((column) => {
    if (column.key === 'gpu' && gpus.length < 2) return false;
    // A column of which nothing is known says nothing.
    return column.key === 'name' || rows.some((row) => !/^(–|unknown)$/.test(column.value(row)));
  });
  const shown = all ? matches : matches.slice(0, SHOWN);
  const by = ({ key, text: words }: Column) => () =>
    setSort((old) => ({ key, descending: old.key === key ? !old.descending : !words }));
  const title = host ? 'Busiest ops on the host' : 'Kernels';
  const [direction, arrow] = sort.descending ? (['descending', ' ▾'] as const) : (['ascending', ' ▴'] as const);
  if (rows.length === 0)
    return <p class="kernels none-yet">{host ? 'This window holds no ops of the host: what was recorded is older than that, or no op was traced.' : 'This window holds no kernel.'}</p>;
  return (
    <section class={roomy ? 'tables kernels roomy' : 'tables kernels'} aria-label={title}>
      <div class="kernels-head">
        <b>
          {title}
          {!ofStep && `, ${windowSteps(reply)}`}
        </b>
        {ofStep && (
          <div class="segmented" role="group" aria-label="Kernels of">
            <button type="button" aria-pressed={!whole} onClick={() => setWhole(false)}>
              step {count(step)}
            </button>
            <button type="button" aria-pressed={whole} onClick={() => setWhole(true)}>
              {windowSteps(reply)}
            </button>
          </div>
        )}
        <input type="search" aria-label="Filter by name or op" placeholder="filter by name or op" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        {gpus.length > 1 && (
          <select aria-label="GPU" value={gpu === null ? '' : String(gpu)} onChange={(event) => setGpu(event.currentTarget.value === '' ? null : Number(event.currentTarget.value))}>
            <option value="">all GPUs</option>
            {gpus.map((index) => (
              <option key={index} value={String(index)}>
                gpu{index}
              </option>
            ))}
          </select>
        )}
        <span class="dim" role="status">
          {matches.length === rows.length ? count(rows.length) : `${count(matches.length)} of ${count(rows.length)}`}
          {rows === ofWindow && reply.kernels_left_out > 0 && `, the longest of ${count(rows.length + reply.kernels_left_out)}`}
        </span>
        {!isOffline && (
          <a href={kernelsUrl(recording.id)} download="kernels.csv">
            CSV
          </a>
        )}
        <Small sign={roomy ? '▾' : '▴'} name={roomy ? 'Room for the lanes again' : 'More room for the kernels'} onClick={() => setRoomy(!roomy)} />
      </div>
      {host && <p class="dim">Ops run on several threads at once: together they may take longer than the steps.</p>}
      <div class="table-scroll" tabIndex={0} role="region" aria-label={`${title} as a table`}>
        <table>
          <thead>
            <tr>
              {columns.map((column) => (
                <th
                  scope="col"
                  key={column.key}
                  class={column.text ? 'words' : undefined}
                  aria-sort={sort.key === column.key ? direction : undefined}
                >
                  <button type="button" title={`${column.hint}; click to sort`} onClick={by(column)}>
                    {column.title}
                    <span aria-hidden="true">{sort.key === column.key ? arrow : ''}</span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((row, i) => (
              <tr key={i}>
                {columns.map((column, c) => {
                  const value = column.value(row);
                  return c === 0 ? (
                    <th scope="row" key={column.key} title={value}>
                      <bdi>{value}</bdi>
                    </th>
                  ) : (
                    <td key={column.key} class={column.text ? 'words' : undefined} title={column.key === 'op' ? value : undefined}>
                      {column.text ? <bdi>{value}</bdi> : value}
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
        {matches.length === 0 && <p class="dim">Nothing of that name.</p>}
        {matches.length > shown.length && (
          <button type="button" class="linklike" onClick={() => setAll(true)}>
            show all {count(matches.length)}
          </button>
        )}
      </div>
    </section>
  );
}
