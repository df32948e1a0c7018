/** What the recording itself cost, measured in that very run. */
import type { WordedReport } from '../api/types.ts';
import { duration, percent, seconds } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { useApp, useTab } from './hooks.ts';

const isNumber = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value);

/** What recording took, as shares of the run; with profiler windows the training thread also begins and ends these. */
export function overheadParts(report: WordedReport): string[] {
  const { overhead: cost, wall_s: wall, steps } = report;
  const parts: string[] = [];
  const windows = isNumber(cost.windows_s) && cost.windows_s > 0 ? cost.windows_s : 0;
  const of = (seconds: number): string => (isNumber(wall) && wall > 0 ? `${percent((100 * seconds) / wall)} of the run` : duration(seconds));
  if (isNumber(cost.callback_us_per_step)) {
    const own = of((cost.callback_us_per_step * steps) / 1e6);
    parts.push(windows > 0 ? `training thread ${own}, beginning and ending profiler windows included` : `${seconds(cost.callback_us_per_step / 1e6)} a step on the training thread, ${own}`);
  }
  if (windows > 0) parts.push(`profiler windows ${duration(windows)}, ${of(windows)}`);
  if (isNumber(cost.sampler_cpu_pct)) parts.push(`sampler ${percent(cost.sampler_cpu_pct)} of a core`);
  if (isNumber(cost.recorder_cpu_pct)) parts.push(`writer ${percent(cost.recorder_cpu_pct)} of a core`);
  return parts;
}

/** Below everything: the switch for tables, and what the recorder itself cost. */
export function Footer({ report, version }: { report: WordedReport; version: string }) {
  const { app } = useTab();
  const tables = useApp((state) => state.tables);
  const parts = overheadParts(report);
  return (
    <footer class="footer">
      <button type="button" class="linklike" aria-expanded={tables} title="t" onClick={() => app.state.set({ tables: !tables })}>
        <span aria-hidden="true">{tables ? '▾' : '▸'}</span> The numbers as tables
      </button>
      <details class="cost">
        <summary>Recorder overhead: {parts.length > 0 ? parts.join(' · ') : 'not measured'}</summary>
        <p>
          Measured in this very run. <b>A step</b>: the callback's own code on the training thread; it grows on a machine whose cores are all
          busy. <b>Sampler</b> and <b>writer</b>: background threads that read the GPUs and write the files; 100 % is one core. <b>Profiler windows</b>: starting,
          stopping and reading them, within <code>overhead_budget</code>.
        </p>
      </details>
      {version && <span class="dim">gpu-util-callback {clean(version, 24)}</span>}
    </footer>
  );
}
