/** What held the GPU back: spans and whole-run findings by the time they cost. */
import type { Finding, RecordingReply } from '../api/types.ts';
import { findingId } from '../lanes/spans.ts';
import { plural, seconds } from '../math/format.ts';
import { clean, held } from '../math/text.ts';
import { causeStyle, culprit } from '../words/causes.ts';
import { notJudged, statusOf, stepsText } from '../words/labels.ts';
import { aboutGpus } from './gpus.tsx';
import { useApp, useTab } from './hooks.ts';
import { Windows } from './window.tsx';
import { Prose, Remedy } from './prose.tsx';

const byLoss = (a: { item: Finding }, b: { item: Finding }): number => (b.item.lost_s ?? -1) - (a.item.lost_s ?? -1);

export function Findings({ recording }: { recording: RecordingReply }) {
  const { timeline } = useTab();
  const selected = useApp((state) => (state.window ? null : state.selected));
  const spans = (recording.report.spans ?? []).map((item, i) => ({ item, id: findingId(item, i) })).sort(byLoss);
  const whole = (recording.report.findings ?? []).map((item, i) => ({ item, id: findingId(item, i) })).sort(byLoss);
  const gpus = recording.report.gpus?.length ?? 0;
  const title = recording.report.gpus?.some((gpu) => gpu.used_by_framework !== false) ? 'What held the GPU back' : 'What held training back';
  const choose = (id: string, item: Finding): void => {
    if (selected === id) timeline.showSpan(item);
    else timeline.choose(id);
    // In a narrow frame the details are below the lanes.
    requestAnimationFrame(() => document.querySelector('.details')?.scrollIntoView({ block: 'nearest' }));
  };
  return (
    <section class="findings" aria-label={title}>
      <h2>{spans.length === 0 && whole.length > 0 ? `${title}, for the whole run` : title}</h2>
      {spans.length + whole.length === 0 && <Calm recording={recording} />}
      <Cards list={spans} gpus={gpus} selected={selected} choose={choose} />
      {spans.length > 0 && whole.length > 0 && <h3>For the whole run</h3>}
      <Cards list={whole} gpus={gpus} selected={selected} choose={choose} />
      <Workers gpus={gpus} selected={selected} choose={choose} />
      <Windows recording={recording} />
      <Missing recording={recording} />
    </section>
  );
}

/** The other workers of this job, and what only a look at all of them shows. */
function Workers({ gpus, selected, choose }: Omit<CardsProps, 'list'>) {
  const { app, refresh } = useTab();
  const job = useApp((state) => state.job);
  const id = useApp((state) => state.id);
  const compare = useApp((state) => state.compare);
  const listed = useApp((state) => state.runs?.recordings);
  const workers = (job?.workers ?? []).filter((one) => listed?.some((item) => item.id === one.id));
  if (!job || workers.length < 2) return null;
  const others = workers.filter((one) => one.id !== id);
  const go = (to: string): void => {
    app.choose(to);
    refresh();
  };
  return (
    <>
      <h3>Across {workers.length} workers</h3>
      <Cards list={job.findings.map((item, i) => ({ item, id: findingId(item, i) }))} gpus={gpus} selected={selected} choose={choose} />
      {job.findings.length === 0 && <p class="dim">No straggler was found.</p>}
      <div class="windows">
        <ul>
          {workers.slice(0, 64).map((one) => (
            <li key={one.id}>
              <button
                type="button"
                class="window-button"
                aria-pressed={one.id === id}
                title={[clean(one.host, 80), one.status && statusOf(one.status).hint].filter(Boolean).join('\n')}
                onClick={() => go(one.id)}
              >
                rank {one.rank ?? '?'}
                {(one.status === 'lost' || one.status === 'interrupted') && (
                  <span class={`status status-${one.status}`}>
                    {' '}
                    <i aria-hidden="true" />
                    {statusOf(one.status).title} after {plural(one.steps ?? 0, 'step')}
                  </span>
                )}
              </button>
            </li>
          ))}
          {others.length <= 7 && !others.every((one) => compare.includes(one.id)) && (
            <li>
              <button
                type="button"
                class="window-button"
                onClick={() => {
                  for (const one of others) app.compareWith(one.id, true);
                  refresh();
                }}
              >
                compare all
              </button>
            </li>
          )}
        </ul>
      </div>
      {workers.map((one) => one.clock?.text && (
        <p key={one.id} class="clock dim">
          <bdi>{held(clean(one.clock.text, 300))}.</bdi>
        </p>
      ))}
    </>
  );
}

function Calm({ recording }: { recording: RecordingReply }) {
  const { steps, verdict } = recording.report;
  if (!steps) return <p class="dim">Nothing to judge yet.</p>;
  if (notJudged(verdict)) return <p class="dim">Not judged: too little of the training was seen.</p>;
  if (/^Nothing outside/.test(verdict ?? '')) return <p class="dim">Nothing was found outside the steps; what happens within them was not measured.</p>;
  if (!/^Nothing held/.test(verdict ?? '')) return <p class="dim">No cause was established.</p>;
  return (
    <p class="calm">
      <span aria-hidden="true">✓ </span>No bottleneck was found in this run.
    </p>
  );
}

interface CardsProps {
  list: { item: Finding; id: string }[];
  /** How many GPUs the run has: a finding about all of them need not name them. */
  gpus: number;
  selected: string | null;
  choose: (id: string, item: Finding) => void;
}

function Cards({ list, gpus, selected, choose }: CardsProps) {
  if (list.length === 0) return null;
  return (
    <ul class="finding-list">
      {list.map(({ item, id }) => {
        const style = causeStyle(item.cause);
        return (
          <li key={id}>
            <button
              type="button"
              class="finding"
              aria-pressed={selected === id}
              style={{ '--cause': `var(--${style.colour})` }}
              title="Click for the evidence; click again to zoom to it"
              onClick={() => choose(id, item)}
            >
              <span class="finding-head">
                <span class="glyph" aria-hidden="true">
                  {style.glyph}
                </span>
                <b>
                  <bdi>{clean(item.title, 90) || style.title}</bdi>
                </b>
                <span class="lost">{typeof item.lost_s === 'number' ? seconds(item.lost_s) : item.confidence === 'estimated' ? 'estimate' : ''}</span>
              </span>
              <span class="finding-text">
                <bdi>{held([stepsText(item), culprit(item), where(item, gpus), gainOf(item)].filter(Boolean).join(' · '))}</bdi>
              </span>
            </button>
          </li>
        );
      })}
    </ul>
  );
}

/** How much of what was lost can be had back, where it is not all of it. */
const gainOf = ({ saves_s: saves, lost_s: lost }: Finding): string => (saves && lost && saves < 0.95 * lost ? `up to ${seconds(saves)} of it to gain` : '');

function where(item: Finding, gpus: number): string {
  const parts: string[] = [];
  if (item.gpus?.length && item.gpus.length < gpus) parts.push(item.gpus.map((gpu) => `gpu${clean(gpu, 12).replace(/^gpu/, '')}`).slice(0, 4).join(', ') + (item.gpus.length > 4 ? ` and ${item.gpus.length - 4} more` : ''));
  if (item.ranks && item.ranks.length > 1) parts.push(`ranks ${item.ranks.map((rank) => clean(rank, 8)).slice(0, 8).join(', ')}`);
  if (item.confidence === 'estimated' && typeof item.lost_s === 'number') parts.push('estimate');
  return parts.join(' · ');
}

/** What could not be measured, with the reason and the cure. */
function Missing({ recording }: { recording: RecordingReply }) {
  // Why there is no GPU stands in the place of the GPUs' cards.
  const missing = (recording.report.unavailable ?? []).filter((item) => recording.report.gpus?.length || !aboutGpus(item));
  const problems = recording.problems ?? [];
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
