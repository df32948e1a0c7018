/** What the recording itself cost, measured in that very run. */
import type { WordedReport } from '../api/types.ts';
import { percent, seconds } from '../math/format.ts';
import { clean } from '../math/text.ts';
import { useApp, useTab } from './hooks.ts';

const known = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value);

export function overheadParts(report: WordedReport): string[] {
  const cost = report.overhead;
  const parts: string[] = [];
  if (known(cost.callback_us_per_step)) parts.push(`${seconds(cost.callback_us_per_step / 1e6)} a step on the training thread`);
  if (known(cost.sampler_cpu_pct)) parts.push(`sampler ${percent(cost.sampler_cpu_pct)} of a core`);
  if (known(cost.recorder_cpu_pct)) parts.push(`writer ${percent(cost.recorder_cpu_pct)} of a core`);
  if (known(cost.windows_s) && cost.windows_s > 0) parts.push(`profiler windows ${seconds(cost.windows_s)}`);
  return parts;
}

/** Share of a median step that the callback itself takes; empty where either is not known. */
function shareText(report: WordedReport): string {
  const [us, ms] = [report.overhead.callback_us_per_step, report.step_ms.p50];
  return known(us) && known(ms) && ms > 0 ? `, ${percent((us / ms) * 0.1)} of one` : '';
}

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
          Measured in this very run. <b>A step</b>: the callback's own code on the training thread{shareText(report)}; it grows on a machine whose cores are all
          busy. <b>Sampler</b> and <b>writer</b>: background threads that read the GPUs and write the files; 100 % is one core. <b>Profiler windows</b>: starting,
          stopping and reading them, within <code>overhead_budget</code>.
        </p>
      </details>
      {version && <span class="dim">gpu-util-callback {clean(version, 24)}</span>}
    </footer>
  );
}
