/** Profiler windows: their list, and the breakdown of one traced step. */
import { stepsText } from '../words/labels.ts';
import { useEffect, useState } from 'preact/hooks';
import { fetchWindow, hasProfilePlugin } from '../api/client.ts';
import type { RecordingReply, TracedStep, WindowInfo, WindowReply } from '../api/types.ts';
import { nearestStep, tracedSteps } from '../lanes/windows.ts';
import { count, nanoseconds, plural, seconds, share } from '../math/format.ts';
import { held as unbroken } from '../math/text.ts';
import { addressWindow, type OpenWindow } from '../state/hash.ts';
import { hostStepCategories, gpuCategories, type Category } from '../words/accounts.ts';
import { useApp, useTab } from './hooks.ts';
import { Small } from './small.tsx';
import { Heads } from './table.tsx';

const LISTED = 60;

export const windowSteps = (window: WindowInfo): string => stepsText({ start_step: window.first_step, end_step: window.stop_step });

/** The windows as buttons: what is clicked in the timeline can be reached by keyboard here. */
export function Windows({ recording }: { recording: RecordingReply }) {
  const { app } = useTab();
  const open = useApp((state) => state.window?.number ?? null);
  const windows = recording.windows;
  if (windows.length === 0) return null;
  const choose = (number: number): void => {
    app.openWindow({ number, step: null });
    // In a narrow frame the details are below the lanes.
    requestAnimationFrame(() => document.querySelector('.details')?.scrollIntoView({ block: 'nearest' }));
  };
  return (
    <details class="aside windows" open={windows.length <= 12 && matchMedia('(min-width: 1081px)').matches}>
      <summary>
        {plural(windows.length, 'profiler window')}
      </summary>
      <ul>
        {windows.slice(0, LISTED).map((window) => (
          <li key={window.window}>
            <button type="button" class="window-button" aria-pressed={open === window.window} onClick={() => choose(window.window)}>
              <i class="swatch" style={{ background: 'var(--slate)' }} /> {windowSteps(window)}
            </button>
          </li>
        ))}
      </ul>
      {windows.length > LISTED && <p class="dim">and {count(windows.length - LISTED)} more in the timeline</p>}
    </details>
  );
}

export interface Loaded {
  reply: WindowReply | null;
  error: string | null;
}

const WAITING: Loaded = { reply: null, error: null };
const HELD = 8;
const held = new Map<string, Promise<WindowReply>>();

/** A window's contents from the server; the last few are kept, by recording, window and revision. */
function load(id: string, window: number, revision: unknown): Promise<WindowReply> {
  const key = `${id}\n${window}\n${String(revision)}`;
  let reply = held.get(key);
  if (!reply) {
    reply = fetchWindow(id, window);
    held.set(key, reply);
    reply.catch(() => held.delete(key));
    for (const old of held.keys()) if (held.size > HELD) held.delete(old);
  }
  return reply;
}

/** A window's contents; of a live run it asks again until there are some. */
export function useWindow(recording: RecordingReply, window: number | null): Loaded {
  const [state, setState] = useState<Loaded & { key: string }>({ ...WAITING, key: '' });
  const empty = state.reply !== null && state.reply.steps.length === 0;
  const revision = empty && recording.report.status === 'live' ? recording.revision : 0;
  const key = `${recording.id} ${window}`;
  useEffect(() => {
    if (window === null) return;
    let wanted = true;
    load(recording.id, window, revision).then(
      (reply) => wanted && setState({ reply, error: null, key }),
      (error: Error) => wanted && setState({ reply: null, error: error.message, key }),
    );
    return () => {
      wanted = false;
    };
  }, [key, revision]);
  return state.key === key ? state : WAITING;
}

/** A profiler window: one of its traced steps, where its time went, and the way to the others. */
export function TracedWindow({ recording, open }: { recording: RecordingReply; open: OpenWindow }) {
  const { app, timeline } = useTab();
  const { reply, error } = useWindow(recording, open.number);
  const windows = recording.windows;
  const position = windows.findIndex(({ window }) => window === open.number);
  const info = windows[position] ?? reply;
  const steps = reply ? tracedSteps(reply.steps) : [];
  const step = reply ? nearestStep(reply.steps, open) : null;
  useEffect(() => {
    if (step !== null && step !== open.step) app.openWindow({ number: open.number, step });
  }, [step, open]);
  const to = (by: number): void => {
    const next = windows[(position + by + windows.length) % windows.length];
    if (next) app.openWindow({ number: next.window, step: null });
  };
  return (
    <article class="selected traced" aria-label="Traced step">
      <header class="selected-nav">
        <span>{position >= 0 ? `Window ${position + 1} of ${windows.length}` : `Window ${open.number}`}</span>
        {windows.length > 1 && <Small sign="‹" name="Previous profiler window" onClick={() => to(-1)} />}
        {windows.length > 1 && <Small sign="›" name="Next profiler window" onClick={() => to(1)} />}
        {info && (
          <Small sign="zoom" name="Zoom to this window" onClick={() => timeline.showWindow(info)} />
        )}
        <Small sign="✕" name="Close the profiler window" onClick={() => app.openWindow(null)} />
      </header>
      {error && <p role="alert">{error}</p>}
      {reply && step === null && <p class="hint">No step of this window could be read.</p>}
      {reply && step !== null && (
        <>
          <div class="step-nav">
            <h2>Step {count(step)}</h2>
            <StepChoice steps={steps} step={step} choose={(next) => app.openWindow({ number: open.number, step: next })} />
          </div>
          <p class="facts">
            {unbroken([windowSteps(reply), reply.events !== null ? `${count(reply.events)} events` : '', reply.cost_s !== null ? `cost ${seconds(reply.cost_s)}` : ''].filter(Boolean).join(' · '))}
          </p>
          <Breakdown rows={reply.steps.filter((row) => row.step === step)} />
          <ProfileLink run={reply.profile_run} />
        </>
      )}
    </article>
  );
}

/** The traced step to show, and the ones before and after it. */
function StepChoice({ steps, step, choose }: { steps: number[]; step: number; choose: (step: number) => void }) {
  if (steps.length < 2) return null;
  const at = steps.indexOf(step);
  const to = (by: number) => () => choose(steps[(at + by + steps.length) % steps.length] as number);
  return (
    <div class="step-choice">
      <Small sign="‹" name="Previous traced step" onClick={to(-1)} />
      <select aria-label="Traced step" value={String(step)} onChange={(event) => choose(Number(event.currentTarget.value))}>
        {steps.map((step) => (
          <option key={step} value={String(step)}>
            {count(step)}
          </option>
        ))}
      </select>
      <Small sign="›" name="Next traced step" onClick={to(1)} />
    </div>
  );
}

/** A step's time on each GPU, which it sums to; on the host where no GPU was traced. */
function Breakdown({ rows }: { rows: TracedStep[] }) {
  const host = rows.every(({ gpu }) => gpu < 0);
  const categories = host ? hostStepCategories() : gpuCategories();
  const columns = rows.filter(({ gpu }) => host || gpu >= 0);
  const longest = Math.max(...columns.map(({ duration_ns }) => duration_ns ?? 0), 1);
  const name = (row: TracedStep): string => (row.gpu < 0 ? 'host' : `gpu${row.gpu}`);
  const value = (row: TracedStep, category: Category): number | null => row[`${category.key}_ns`] ?? null;
  const batches = columns[0]?.batches ?? 1;
  return (
    <>
      <dl class="contrast" aria-hidden="true">
        {columns.map((row) => (
          <>
            <dt>{name(row)}</dt>
            <dd>
              <span class="contrast-bar">
                {categories.map((category) => (
                  <i
                    key={category.key}
                    class={category.idle ? 'idle' : undefined}
                    title={`${category.title}: ${nanoseconds(value(row, category))}`}
                    style={{ width: `${(100 * (value(row, category) ?? 0)) / longest}%`, background: `var(--${category.colour})` }}
                  />
                ))}
              </span>
            </dd>
          </>
        ))}
      </dl>
      <div class="breakdown" tabIndex={0} role="region" aria-label="Breakdown of the step">
        <table class="evidence">
          <caption>
            {host ? 'Where the step went, on the host: no GPU was traced' : 'Where the step went, on each GPU'}
            {batches && batches > 1 ? ` (one call, ${count(batches)} batches)` : ''}
          </caption>
          <Heads of={['what', ...columns.map(name)]} />
          <tbody>
            {categories.map((category) => (
              <tr key={category.key} class={columns.every((row) => !value(row, category)) ? 'none' : undefined}>
                <th scope="row" title={category.explanation}>
                  <i class={category.idle ? 'swatch idle' : 'swatch'} style={{ background: `var(--${category.colour})` }} /> {category.title}
                </th>
                {columns.map((row) => (
                  <td key={row.gpu} title={share(value(row, category), row.duration_ns)}>
                    {nanoseconds(value(row, category))}
                    {columns.length === 1 && <small>{share(value(row, category), row.duration_ns)}</small>}
                  </td>
                ))}
              </tr>
            ))}
            <tr class="sum">
              <th scope="row">step</th>
              {columns.map((row) => (
                <td key={row.gpu}>{nanoseconds(row.duration_ns)}</td>
              ))}
            </tr>
          </tbody>
        </table>
      </div>
    </>
  );
}

/** To the same window in TensorBoard's Profile tab, where that plugin is installed. */
function ProfileLink({ run }: { run: string | null }) {
  const [there, setThere] = useState(false);
  useEffect(() => {
    let wanted = true;
    void hasProfilePlugin().then((found) => wanted && setThere(found));
    return () => {
      wanted = false;
    };
  }, []);
  if (!there) return null;
  return (
    <p class="profile-link">
      {/* A page of its own: the Profile tab rewrites the history, and "back" would not lead here. */}
      <a href={profileHref(run)} target="_blank" rel="noopener" title="opens in a new browser tab">
        {run ? 'This window in the Profile tab' : 'Open the Profile tab'} <span aria-hidden="true">↗</span>
      </a>
    </p>
  );
}

/** The Profile tab reads what it shows from the page's query, not from its hash. */
export function profileHref(run: string | null, location: Pick<Location, 'origin' | 'pathname' | 'search'> = addressWindow().location): string {
  const query = new URLSearchParams(location.search);
  for (const key of ['run', 'tool', 'tag', 'host', 'hosts', 'session_path', 'run_path']) query.delete(key);
  if (run !== null) {
    query.set('tool', 'trace_viewer@');
    query.set('run', run);
  }
  const text = query.toString();
  return `${location.origin}${location.pathname}${text ? `?${text}` : ''}#profile`;
}
