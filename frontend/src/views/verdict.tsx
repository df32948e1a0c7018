/** First glance: the verdict with its remedy, the training thread's account and each GPU's. */
import type { JobReply, Report } from '../api/types.ts';
import { headlineOf, jobFindings } from '../lanes/findings.ts';
import { count, gain, times } from '../math/format.ts';
import { clean, held } from '../math/text.ts';
import { gpuCategories, hostCategories, slices } from '../words/accounts.ts';
import { causeStyle } from '../words/causes.ts';
import { factsLine, runName } from '../words/labels.ts';
import { AccountBar, Ceilings } from './account.tsx';
import { Fix, wallOf } from './fix.tsx';
import { GpuCards } from './gpus.tsx';
import { useApp, useTab } from './hooks.ts';
import { Small } from './small.tsx';

export function Verdict({ report }: { report: Report }) {
  const { app } = useTab();
  const brief = useApp((state) => state.brief);
  const job = useApp((state) => state.job);
  const host = slices(report.time_s, hostCategories());
  const gpus = Object.entries(report.gpu_time_est ?? {})
    .map(([index, account]) => ({ index, parts: slices(account, gpuCategories()) }))
    .filter(({ parts }) => parts.length > 0);
  const own = clean(report.verdict, 400);
  const { text, fix } = headline(report, job);
  return (
    <section class={['verdict', brief && 'brief', !fix && 'no-fix'].filter(Boolean).join(' ')} aria-label="Verdict">
      <div class="verdict-head">
        <h1>
          <bdi>{held(text)}</bdi>
        </h1>
        <Small sign={brief ? '▾' : '▴'} name={brief ? 'Show where the time went' : 'More room for the lanes'} keys="v" onClick={() => app.state.set({ brief: !brief })} />
      </div>
      <div class="verdict-facts">
        {job?.verdict && job.verdict.text !== own && !job.verdict.text.endsWith(own) && (
          <p class="facts">
            Rank {report.rank}: <bdi>{held(own)}</bdi>
          </p>
        )}
        <p class="facts">{held(factsLine(report).join(' · '))}</p>
        <Since />
      </div>
      {fix && (
        <div class="verdict-fix">
          <Fix heading="h2" item={fix.first.item} saves={fix.range} wall={wallOf(report)} />
        </div>
      )}
      <div class="accounts">
        {host.length > 0 && (
          <AccountBar
            title="Training thread"
            mark="measured"
            markHint="Every second of the thread that runs fit, measured; the parts add up to the wall time."
            bars={[{ name: '', slices: host }]}
            total={report.wall_s ?? 0}
            au={report.au}
          />
        )}
        {gpus.length > 0 && (
          <AccountBar
            title={gpus.length === 1 ? `gpu${gpus[0]?.index}` : `${gpus.length} GPUs`}
            mark="estimate"
            markHint={estimateHint(report)}
            bars={gpus.map(({ index, parts }) => ({ name: `gpu${clean(index, 8)}`, slices: parts }))}
            total={report.wall_s ?? 0}
          />
        )}
        {report.ceilings && <Ceilings ceilings={report.ceilings} />}
      </div>
      <GpuCards report={report} />
    </section>
  );
}

/** What the page is about, and the findings to mend first: the job's where several workers train together. */
export function headline(report: Report, job: JobReply | null): { text: string; fix: ReturnType<typeof headlineOf> } {
  const own = { text: clean(report.verdict, 400) || fallback(report), fix: headlineOf(report) };
  const workers = report.world_size ?? 1;
  if (workers > 1 && !job) return { text: `Comparing the ${count(workers)} workers…`, fix: null };
  const { verdict } = job ?? {};
  if (!verdict) return own;
  const across = jobFindings(job?.findings ?? []).find(({ first }) => first.id === verdict.finding);
  return { text: clean(verdict.text, 400), fix: across ?? (verdict.rank === report.rank ? own.fix : null) };
}

/** Whether the promise made to the fit before this one came true. */
function Since() {
  const { app, refresh } = useTab();
  const since = useApp((state) => state.job?.since ?? null);
  const there = useApp((state) => !!since && (state.runs?.recordings.some(({ id }) => id === since.id) ?? false));
  const compared = useApp((state) => !!since && state.compare.includes(since.id));
  if (!since) return null;
  const compare = (): void => {
    app.compareWith(since.id, true);
    refresh();
  };
  return (
    <p class={since.got > 1 ? 'since' : undefined}>
      {since.got > 1 && <span aria-hidden="true">✓ </span>}Since <bdi>{runName(since.run)}</bdi>: {since.gone.map((cause) => causeStyle(cause).title).join(', ')} gone; {since.estimated[1] >= 1.05 && `estimated gain ${gain(1, since.estimated.map((factor) => 1 - 1 / factor) as [number, number])}, `}
      measured <b>{times(since.got)}</b>.{' '}
      {there && !compared && (
        <button type="button" class="linklike" onClick={compare}>
          compare
        </button>
      )}
    </p>
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
