/** First glance: the verdict, the training thread's account and each GPU's. */
import type { Report } from '../api/types.ts';
import { clean } from '../math/text.ts';
import { GPU_CATEGORIES, HOST_CATEGORIES, slices } from '../words/accounts.ts';
import { factsLine } from '../words/labels.ts';
import { AccountBar } from './account.tsx';
import { GpuCards } from './gpus.tsx';

const MAX_GPU_BARS = 4;

export function Verdict({ report }: { report: Report }) {
  const host = slices(report.time_s, HOST_CATEGORIES);
  const gpus = Object.entries(report.gpu_time_est ?? {})
    .map(([index, account]) => ({ index, parts: slices(account, GPU_CATEGORIES) }))
    .filter(({ parts }) => parts.length > 0);
  return (
    <section class="verdict" aria-label="Verdict">
      <div class="verdict-main">
        <h1>
          <bdi>{clean(report.verdict, 400) || fallback(report)}</bdi>
        </h1>
        <p class="facts">{factsLine(report).join(' · ')}</p>
        <div class="accounts">
          {host.length > 0 && (
            <AccountBar
              title="Training thread"
              mark="measured"
              markHint="Every second of the thread that runs fit, measured; the parts add up to the wall time."
              slices={host}
              total={report.wall_s ?? 0}
            />
          )}
          {gpus.slice(0, MAX_GPU_BARS).map(({ index, parts }) => (
            <AccountBar
              key={index}
              title={`GPU ${index}`}
              mark="estimate"
              markHint="Extrapolated from profiler windows and NVML samples to the whole run. A GPU's time is an account of its own: it is never added to the thread's."
              slices={parts}
              total={0}
            />
          ))}
          {gpus.length > MAX_GPU_BARS && <p class="facts">{gpus.length - MAX_GPU_BARS} more GPUs are in the report (JSON).</p>}
        </div>
      </div>
      <GpuCards report={report} />
    </section>
  );
}

function fallback(report: Report): string {
  if (!report.steps) return report.status === 'live' ? 'Training has begun; no step is done yet.' : 'No step was recorded.';
  return 'Nothing stands out in this run.';
}
