/** The findings as rows above the lanes; the workers of a job; what was not measured. */
import type { JobReply, RecordingReply, WordedReport, WorkerReply } from '../api/types.ts';
import { remedyOf, type Group } from '../state/findings.ts';
import { type Bounds, count, duration, percent, plural, seconds } from '../math/format.ts';
import { clean, held, ranges } from '../math/text.ts';
import { causeStyle, culprit, titleOf } from '../words/causes.ts';
import { statusOf, stepsText } from '../words/labels.ts';
import { aboutGpus, Gpus } from './gpus.tsx';
import { useApp, useTab } from './hooks.ts';
import { Windows } from './window.tsx';
import { Command } from './fix.tsx';
import { Prose, Remedy } from './prose.tsx';
import { partColour } from './verdict.tsx';

/** Up to this many workers are listed one by one. */
const FEW_WORKERS = 3;

/** All findings, in the order of what a fix surely saves, with what was lost and what is saved. */
export function Findings({ recording }: { recording: RecordingReply }) {
  const { app, timeline } = useTab();
  const selected = useApp((state) => (state.window ? null : state.selected));
  useApp((state) => state.job);
  const gpus = recording.report.gpus.length;
  const { rows } = app;
  const choose = (group: Group): void => {
    const place = group.list.findIndex(({ id }) => id === selected);
    // Of several spans, each further click goes to the next one.
    const next = place < 0 ? group.first : (group.list[(place + 1) % group.list.length] as Group['first']);
    timeline.choose(next.id);
    if (place >= 0) timeline.showSpan(next);
  };
  return (
    <table class="finding-list">
      {rows.length === 0 && (
        <caption>
          <Calm report={recording.report} />
        </caption>
      )}
      <thead hidden={rows.length === 0}>
        <tr>
          <th scope="col">finding</th>
          <th scope="col">lost</th>
          <th scope="col" title="The least and the most that its fix saves">
            a fix saves
          </th>
        </tr>
      </thead>
      <tbody>
        {rows.map((group) => {
          const item = group.first;
          const saved = remedyOf(group, item);
          return (
            <tr key={item.id}>
              <th scope="row">
                <button
                  type="button"
                  class="finding"
                  aria-pressed={group.list.some((finding) => finding.id === selected)}
                  style={{ '--cause': partColour(item) }}
                  title={held([titleOf(item), distinction(group, gpus), group.list.length > 1 ? 'Click again for the next span' : ''].filter(Boolean).join('\n'))}
                  onClick={() => choose(group)}
                >
                  <i class="swatch" style={{ background: 'var(--cause)' }} />
                  <span class="glyph" aria-hidden="true">
                    {causeStyle(item.cause).glyph}
                  </span>
                  <bdi>{titleOf(item)}</bdi>
                </button>
              </th>
              <td class="lost">{duration(group.lost)}</td>
              <td>{savedText(saved.item.saves_s || saved.item.advice?.question ? saved.range : null, !!saved.item.advice?.question)}</td>
            </tr>
          );
        })}
        {Object.entries(recording.report.not_counted).map(([part, text]) => (
          <tr key={part} class="near">
            <td colSpan={3}>
              <i class="swatch" style={{ background: `var(--${clean(part, 12)})` }} /> {held(clean(text, 200))}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Seconds that a fix saves: "1.2–3.4 s", "≤ 3.4 s", with a question mark if it depends on an answer; "–" if no fix is known. */
function savedText(range: Bounds | null, asks: boolean): string {
  const [low, high] = range ?? [null, null];
  if (!high && !low) return '–';
  let text = duration(high);
  if (high === null) text = `≥ ${duration(low)}`;
  else if (!low || low < 0.05 * high) text = `≤ ${text}`;
  else if (duration(low) !== text) text = `${duration(low).replace(/ \S+$/, '')}–${text}`;
  return asks ? `${text} ?` : text;
}

/** Beside the lanes, below the selected finding: workers, profiler windows, what is not known. */
export function About({ recording }: { recording: RecordingReply }) {
  const job = useApp((state) => state.job);
  return (
    <section class="about" aria-label="About this recording">
      {job && job.workers.length > 1 && <Workers job={job} />}
      <Windows recording={recording} />
      {recording.report.au && (
        <p class="au dim" title={clean(recording.report.au.text, 400)}>
          {clean(recording.report.au.name, 20)} <b>{clean(recording.report.au.value, 20)}</b> {clean(recording.report.au.limits, 80)}
        </p>
      )}
      <details class="aside">
        <summary>{recording.report.gpus.length > 1 ? `${recording.report.gpus.length} GPUs` : 'GPU'}</summary>
        <Gpus report={recording.report} />
      </details>
      <Missing recording={recording} />
    </section>
  );
}

/** The workers of this job, and what only a look at all of them shows. */
function Workers({ job }: { job: JobReply }) {
  const { app, refresh } = useTab();
  const id = useApp((state) => state.id);
  const compare = useApp((state) => state.compare);
  const listed = useApp((state) => state.runs?.recordings);
  const workers = job.workers.filter((worker) => listed?.some((item) => item.id === worker.id));
  if (workers.length < 2) return null;
  const others = workers.filter((worker) => worker.id !== id);
  return (
    <>
      <h2>Across {count(workers.length)} workers</h2>
      {job.findings.length === 0 && <p class="dim">No straggler was found.</p>}
      <Ranks job={job} workers={workers} />
      {job.findings.length > 0 && !job.waits && <p class="dim">How long each worker waits is not known: its GPUs' counters show who is late, not for how long.</p>}
      {others.length <= 7 && !others.every((worker) => compare.includes(worker.id)) && (
        <button
          type="button"
          class="linklike"
          onClick={() => {
            for (const worker of others) app.compareWith(worker.id, true);
            refresh();
          }}
        >
          compare all
        </button>
      )}
      <Clocks workers={workers} />
    </>
  );
}

/** Buttons for the ranks, the worst first; alike ones folded into one line. */
function Ranks({ job, workers }: { job: JobReply; workers: WorkerReply[] }) {
  const groups = job.verdict?.groups ?? [];
  const inGroups = new Set(groups.flatMap(({ ids }) => ids));
  const rest = workers.filter(({ id }) => !inGroups.has(id));
  const sets = groups.map((group) => ({
    workers: workers.filter(({ id }) => group.ids.includes(id)),
    note: group.lost_s > 0 ? `${duration(group.lost_s)} lost` : '',
    hint: group.text,
  }));
  if (rest.length > 0) sets.push({ workers: rest, note: '', hint: '' });
  return (
    <ul class="ranks">
      {sets.map((set, i) => (
        <RankSet key={i} {...set} wait={waitText(job.waits, set.workers)} />
      ))}
    </ul>
  );
}

/** "waiting for worker 2 in 35 % of the time", which is the job's loss and none of their own; "" for the late one, and where it is not known. */
function waitText(waits: JobReply['waits'], workers: WorkerReply[]): string {
  const mine = (waits?.rows ?? []).filter(({ rank }) => rank !== waits?.rank && workers.some((worker) => worker.rank === rank));
  const shares = mine.flatMap((row) => row.shares.filter((share) => share !== null));
  if (shares.length === 0) return '';
  const meanPct = (100 * shares.reduce((sum, share) => sum + share, 0)) / shares.length;
  const base = waits?.confidence === 'estimated' ? 'the traced steps' : 'the time';
  return `waiting for worker ${waits?.rank} in ${percent(meanPct)} of ${base}`;
}

/**
 * Workers that are alike: a line each if they are few, else one line that unfolds. Beside them stands for whom they wait
 * (`wait`), else what each lost (`note`); `hint` is the whole sentence.
 */
function RankSet({ workers, note, hint, wait }: { workers: WorkerReply[]; note: string; hint: string; wait: string }) {
  const shown = useApp((state) => state.id);
  if (workers.length <= FEW_WORKERS)
    return workers.map((worker) => (
      <li key={worker.id}>
        <RankButton worker={worker} /> <span class="dim">{wait || note}</span>
      </li>
    ));
  const gone = workers.filter(({ status }) => status === 'lost' || status === 'interrupted');
  return (
    <li>
      {gone.map((worker) => (
        <RankButton key={worker.id} worker={worker} />
      ))}
      <details open={workers.some(({ id }) => id === shown)}>
        <summary title={clean(hint, 300)}>
          {count(workers.length)} alike: ranks {ranges(workers.map(({ rank }) => rank ?? 0))}
          {wait ? `, ${wait}` : note && `, ${note} each`}
        </summary>
        <div class="rank-buttons">
          {workers.slice(0, 256).map((worker) => !gone.includes(worker) && <RankButton key={worker.id} worker={worker} />)}
        </div>
      </details>
    </li>
  );
}

/** Opens a worker's recording; says if it broke off. */
function RankButton({ worker }: { worker: WorkerReply }) {
  const { app, refresh } = useTab();
  const id = useApp((state) => state.id);
  return (
    <button
      type="button"
      class="window-button"
      aria-pressed={worker.id === id}
      title={[clean(worker.host, 80), worker.status && statusOf(worker.status).hint].filter(Boolean).join('\n')}
      onClick={() => {
        app.choose(worker.id);
        refresh();
      }}
    >
      rank {worker.rank ?? '?'}
      {(worker.status === 'lost' || worker.status === 'interrupted') && (
        <span class={`status status-${worker.status}`}>
          {' '}
          <i aria-hidden="true" />
          {statusOf(worker.status).title} after {plural(worker.steps ?? 0, 'step')}
        </span>
      )}
    </button>
  );
}

/** How the workers' clocks differ: one line, all of it a click away. */
function Clocks({ workers }: { workers: WorkerReply[] }) {
  const off = workers.filter(({ clock }) => clock?.text);
  if (off.length === 0) return null;
  const most = Math.max(...off.map(({ clock }) => Math.abs(clock?.offset_ns ?? 0)));
  return (
    <details class="clock dim">
      <summary>
        {count(off.length)} of {plural(workers.length, 'worker clock')} aligned, by up to {seconds(most / 1e9)}
      </summary>
      {off.map((worker) => (
        <p key={worker.id}>
          <bdi>{held(clean(worker.clock?.text, 300))}.</bdi>
        </p>
      ))}
    </details>
  );
}

const CALM: Record<Exclude<WordedReport['calm'], undefined | null | 'healthy'>, string> = {
  compiling: 'Only compiling took long.',
  outside: 'Nothing was found outside the steps; what happens within them was not measured.',
  unexplained: 'No single cause explains the loss.',
  unjudged: 'Not checked: too little of the training was recorded.',
  empty: 'Nothing to judge yet.',
};

/** What stands in place of findings, and the changes that are left to try. */
function Calm({ report }: { report: WordedReport }) {
  const says = report.calm ?? 'unjudged';
  const levers = Object.entries(report.levers);
  return (
    <>
      {says !== 'healthy' ? (
        <p class="dim">{CALM[says]}</p>
      ) : (
        <p class="calm">
          <span aria-hidden="true">✓ </span>Nothing to fix: no bottleneck found.
        </p>
      )}
      {levers.length > 0 && (
        <dl class="levers" aria-label="Levers left">
          {levers.map(([text, change]) => (
            <>
              <dt>{clean(text, 80)}:</dt>
              <dd>
                <Command text={change} />
              </dd>
            </>
          ))}
        </dl>
      )}
    </>
  );
}

/** What distinguishes a finding from others of its cause: when, what, where. */
export const distinction = (group: Group, gpus: number): string =>
  [group.list.length > 1 ? timesText(group) : stepsText(group.first), culprit(group.first), whereText(group.first, gpus)].filter(Boolean).join(' · ');

/** "5 times, 4.4 s each (max 4.6 s)" */
function timesText({ list, lost }: Group): string {
  const most = Math.max(...list.map((item) => item.lost_s ?? 0));
  const each = lost === null ? null : lost / list.length;
  const max = each !== null && most > 1.05 * each ? ` (max ${duration(most)})` : '';
  return `${count(list.length)} times${each === null ? '' : `, ${duration(each)} each${max}`}`;
}

/** "gpu0, gpu1 · ranks 0, 3 · estimate": the GPUs and workers of a finding, where it is not about all of the run's `gpus`. */
function whereText(item: Group['first'], gpus: number): string {
  const parts: string[] = [];
  if (item.gpus?.length && item.gpus.length < gpus) {
    const names = item.gpus.slice(0, 4).map((gpu) => `gpu${clean(gpu, 12).replace(/^gpu/, '')}`);
    const more = item.gpus.length - names.length;
    parts.push(names.join(', ') + (more > 0 ? ` and ${more} more` : ''));
  }
  if (item.ranks && item.ranks.length > 1) parts.push(`ranks ${item.ranks.map((rank) => clean(rank, 8)).slice(0, 8).join(', ')}`);
  if (item.confidence === 'estimated' && typeof item.lost_s === 'number') parts.push('estimate');
  return parts.join(' · ');
}

/** What could not be measured, with the reason and the cure. */
function Missing({ recording }: { recording: RecordingReply }) {
  // Why there is no GPU stands in the place of the GPUs.
  const missing = recording.report.unavailable.filter((item) => recording.report.gpus.length || !aboutGpus(item));
  const problems = recording.problems;
  if (missing.length + problems.length === 0) return null;
  return (
    <details class="aside" open={matchMedia('(min-width: 1081px)').matches}>
      <summary>
        {[missing.length > 0 && `${missing.length} not measured`, problems.length > 0 && `${problems.length} could not be read`].filter(Boolean).join(' · ')}
      </summary>
      <ul class="missing">
        {missing.map((item, i) => (
          <li key={i}>
            <b>
              <bdi>{clean(item.source, 80)}</bdi>
            </b>{' '}
            <bdi>
              <Prose text={item.reason} />
            </bdi>
            <Remedy text={item.cure} />
          </li>
        ))}
      </ul>
      <ul class="missing">
        {problems.map((problem, i) => (
          <li key={i} title={clean(problem.path, 500)}>
            <bdi>
              <Prose text={problem.message} />
            </bdi>
          </li>
        ))}
      </ul>
    </details>
  );
}
