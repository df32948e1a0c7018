/** First glance: the verdict, the training thread's account and each GPU's. */
import type { Report } from '../api/types.ts';
import { clean } from '../math/text.ts';
import { GPU_CATEGORIES, HOST_CATEGORIES, slices } from '../words/accounts.ts';
import { factsLine } from '../words/labels.ts';
import { AccountBar } from './account.tsx';
import { GpuCards } from './gpus.tsx';

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
              bars={[{ name: '', slices: host }]}
              total={report.wall_s ?? 0}
            />
          )}
          {gpus.length > 0 && (
            <AccountBar
              title={gpus.length === 1 ? `GPU ${gpus[0]?.index}` : `${gpus.length} GPUs`}
              mark="estimate"
              markHint={estimateHint(report)}
              bars={gpus.map(({ index, parts }) => ({ name: `gpu${clean(index, 8)}`, slices: parts }))}
              total={report.wall_s ?? 0}
            />
          )}
        </div>
      </div>
      <GpuCards report={report} />
    </section>
  );
}

function estimateHint(report: Report): string {
  const bases = new Set(Object.values(report.gpu_time_est ?? {}).map((account) => account?.basis));
  const from = bases.has('windows')
    ? 'Extrapolated to the whole run from the steps that profiler windows measured.'
    : 'From NVML utilization samples: the share of time in which any kernel ran.';
  return `${from} A GPU's time is an account of its own and is never added to the thread's.`;
}

function fallback(report: Report): string {
  if (!report.steps) return report.status === 'live' ? 'Training has begun; no step is done yet.' : 'No step was recorded.';
  return 'Nothing stands out in this run.';
}
