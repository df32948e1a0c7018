/** First glance: the verdict with its remedy, the training thread's account and each GPU's. */
import type { WordedFinding, JobReply, WordedReport } from '../api/types.ts';
import { headlineOf, jobFindings, namedGpus } from '../lanes/findings.ts';
import { MANY_GPUS } from '../lanes/layout.ts';
import { count as counted, factorsText, plural, times } from '../math/format.ts';
import { clean, held } from '../math/text.ts';
import { gpuActive, gpuCategories, hostSlices, slices } from '../words/accounts.ts';
import { causeStyle } from '../words/causes.ts';
import { runName } from '../words/labels.ts';
import { AccountBar, Ceilings } from './account.tsx';
import { GpuCards, GpuStrip } from './gpus.tsx';
import { useApp, useTab } from './hooks.ts';

export function Verdict({ report }: { report: WordedReport }) {
  const job = useApp((state) => state.job);
  const own = clean(report.verdict, 400);
  return (
    <section class="verdict" aria-label="Verdict">
      <h1>
        <bdi>{held(headline(report, job).text)}</bdi>
      </h1>
      <div class="verdict-facts">
        {job?.verdict && job.verdict.text !== own && !job.verdict.text.endsWith(own) && (
          <p class="facts">
            Rank {report.rank}: <bdi>{held(own)}</bdi>
          </p>
        )}
        <Since />
      </div>
    </section>
  );
}

const NONE: WordedFinding[] = [];

/** A slim bar for the training thread, for the GPUs, for the ceilings: each opens. */
export function Accounts({ report }: { report: WordedReport }) {
  const across = useApp((state) => state.job?.findings ?? NONE);
  const host = hostSlices(report, across);
  const gpus = Object.entries(report.gpu_time_est)
    .map(([index, account]) => ({ name: `gpu${clean(index, 8)}`, slices: slices(account, gpuCategories()) }))
    .filter((bar) => bar.slices.length > 0);
  const count = report.gpus.length;
  // Of many GPUs the account is of those that a finding names.
  const named = count >= MANY_GPUS ? gpus.filter(({ name }) => namedGpus(report).has(name)) : [];
  const bars = named.length > 0 ? named : gpus;
  const [first] = bars;
  const title = count === 0 ? 'No GPU recorded' : bars.length === 1 && first ? `${first.name}${count > 1 ? ` of ${count}` : ''}` : plural(count, 'GPU');
  return (
    <section class="accounts" aria-label="Where the time went">
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
      <AccountBar
        title={title}
        mark={bars.length > 0 ? 'estimate' : ''}
        markHint={estimateHint(report)}
        bars={bars}
        total={report.wall_s ?? 0}
        strip={count >= MANY_GPUS && <GpuStrip report={report} />}
      >
        <GpuCards report={report} />
      </AccountBar>
      {report.ceilings && <Ceilings ceilings={report.ceilings} />}
    </section>
  );
}

/** What the page is about, and the findings to fix first: the job's where several workers train together. */
export function headline(report: WordedReport, job: JobReply | null): { text: string; fix: ReturnType<typeof headlineOf> } {
  const own = { text: clean(report.verdict, 400) || fallback(report), fix: headlineOf(report) };
  const workers = report.world_size ?? 1;
  if (workers > 1 && !job) return { text: `Comparing the ${counted(workers)} workers…`, fix: null };
  const { verdict } = job ?? {};
  if (!verdict) return own;
  const across = (job ? jobFindings(job) : []).find(({ first }) => first.id === verdict.finding);
  return { text: clean(verdict.text, 400), fix: across ?? (verdict.rank === report.rank ? own.fix : null) };
}

/** Whether the promise made to the fit before this one came true. */
function Since() {
  const { app, refresh } = useTab();
  const since = useApp((state) => state.job?.since ?? null);
  const there = useApp((state) => !!since && (state.runs?.recordings.some(({ id }) => id === since.id) ?? false));
  const compared = useApp((state) => !!since && state.compare.includes(since.id));
  if (!since) return null;
  const estimated = factorsText(since.estimated);
  const compare = (): void => {
    app.compareWith(since.id, true);
    refresh();
  };
  return (
    <p class={since.got > 1 ? 'since' : undefined}>
      {since.got > 1 && <span aria-hidden="true">✓ </span>}Since <bdi>{runName(since.run)}</bdi>: {since.gone.map((cause) => causeStyle(cause).title).join(', ')} gone; {estimated && `estimated gain ${estimated}, `}
      measured <b>{times(since.got)}</b>.{' '}
      {since.slower && 'This run is slower all the same. '}
      {there && !compared && (
        <button type="button" class="linklike" onClick={compare}>
          compare
        </button>
      )}
    </p>
  );
}

function estimateHint(report: WordedReport): string {
  const bases = new Set(Object.values(report.gpu_time_est).map((account) => account?.basis));
  const from = bases.has('windows')
    ? 'Extrapolated to the whole run from the steps that profiler windows measured.'
    : `From NVML's utilization: active means that ${gpuActive().explanation}.`;
  return `${from} A GPU's time is an account of its own and is never added to the thread's.`;
}

function fallback(report: WordedReport): string {
  if (!report.steps) return report.status === 'live' ? 'Training has begun; no step is done yet.' : 'No step was recorded.';
  return 'Nothing stands out in this run.';
}
