/** What stands there when there is nothing to show yet: empty, broken, loading. */
import type { RunsReply } from '../api/types.ts';
import { count, plural } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { useTab } from './hooks.ts';
import { Problems } from './runs.tsx';

const CODE = `from gpu_util_callback import GpuUtilCallback

model.fit(dataset, epochs=10,
          callbacks=[GpuUtilCallback("logs/my-run")])`;

/** In place of runs: where the server looked for them, and what to add to a program to have one. */
export function Empty({ runs }: { runs: RunsReply }) {
  const { refresh } = useTab();
  const names = runs.tensorboard_runs;
  return (
    <main class="state">
      <h1>No recording here yet</h1>
      <p>Add one callback, train as before, and this tab shows where every second went:</p>
      <pre tabIndex={0} aria-label="Code to add">
        <code>{CODE}</code>
      </pre>
      <dl>
        <dt>Looked in</dt>
        <dd>
          <bdi class="path">{clean(runs.logdir, 400) || 'the runs given to TensorBoard'}</bdi>
        </dd>
        <dt>for</dt>
        <dd>
          <code>{clean(runs.looked_for, 200)}</code>
        </dd>
        <dt>in</dt>
        <dd>
          {names.length === 0 && (runs.logdir_exists === false ? 'nothing: there is no such directory' : 'no run: TensorBoard has not found any in this directory')}
          {names.length > 0 && (
            <>
              {plural(names.length, 'run')}:{' '}
              {names.slice(0, 12).map((name, i) => (
                <>
                  {i > 0 && ', '}
                  <bdi class="path">{clean(name, 60)}</bdi>
                </>
              ))}
              {names.length > 12 && ` and ${count(names.length - 12)} more`}
            </>
          )}
        </dd>
      </dl>
      <Problems problems={runs.problems} />
      <p>
        <button type="button" class="pill" onClick={refresh}>
          Look again
        </button>{' '}
        <span class="dim">The tab checks again every 15 seconds.</span>
      </p>
    </main>
  );
}

/** In place of everything: what could not be had, and why. */
export function Broken({ message, what }: { message: string; what: string }) {
  const { refresh } = useTab();
  return (
    <main class="state" role="alert">
      <h1>{what}</h1>
      <p>
        <bdi>{clean(message, 400)}</bdi>
      </p>
      <p>
        <button type="button" class="pill" onClick={refresh}>
          Try again
        </button>{' '}
        <span class="dim">Retrying automatically.</span>
      </p>
    </main>
  );
}

/** Shown only after a moment, so that a fast answer brings no flash. */
export function Loading() {
  return (
    <main class="state loading" aria-busy="true">
      <p role="status">Reading the recording…</p>
    </main>
  );
}
