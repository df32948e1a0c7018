/** What the recording itself cost, measured in that very run. */
import type { Report } from '../api/types.ts';
import { percent, seconds } from '../math/format.ts';
import { clean } from '../math/text.ts';

const known = (value: unknown): value is number => typeof value === 'number' && Number.isFinite(value);

export function overheadParts(report: Report): string[] {
  const cost = report.overhead ?? {};
  const parts: string[] = [];
  if (known(cost.callback_us_per_step)) parts.push(`${seconds(cost.callback_us_per_step / 1e6)} a step on the training thread`);
  if (known(cost.sampler_cpu_pct)) parts.push(`sampler ${percent(cost.sampler_cpu_pct)} of a core`);
  if (known(cost.recorder_cpu_pct)) parts.push(`writer ${percent(cost.recorder_cpu_pct)} of a core`);
  if (known(cost.windows_s) && cost.windows_s > 0) parts.push(`profiler windows ${seconds(cost.windows_s)}`);
  return parts;
}

export function Footer({ report, version }: { report: Report; version: string }) {
  const parts = overheadParts(report);
  return (
    <footer class="footer">
      <span>
        Cost of recording: {parts.length > 0 ? parts.join(' · ') : 'not measured'}
      </span>
      {version && <span class="dim">gpu-util-callback {clean(version, 24)}</span>}
    </footer>
  );
}
