/** First glance: how busy the GPU was, what held it back, what to change first, and where the time went. */
import type { TimeBudget as Sums, RecordingReply, WordedFinding } from '../api/types.ts';
import { clauses, headline, remedyOf } from '../state/findings.ts';
import { duration, factorsText, gain, plural, share, times } from '../math/format.ts';
import { shift } from '../math/range.ts';
import { asDiff, clean, cleanCode, held } from '../math/text.ts';
import { isEstimate, isLoss } from '../lanes/time.ts';
import { budgetOf, lossScales, timeLane } from '../timeline/frame.ts';
import { LEAST_NAMED } from '../timeline/poster.ts';
import { valueOver } from '../timeline/readout.ts';
import { causeStyle } from '../words/causes.ts';
import { runName } from '../words/labels.ts';
import { useApp, useSelect, useTab } from './hooks.ts';

/** The share of time in which the GPU was busy, the run in one sentence, and how many findings there are. */
export function Verdict({ recording }: { recording: RecordingReply }) {
  const { app } = useTab();
  const { report } = recording;
  const job = useApp((state) => state.job);
  const panel = useApp((state) => state.panel || state.selected !== null);
  const own = clean(report.verdict, 400);
  const { text } = headline(report, job);
  const [lead, sign, rest] = clauses(text);
  const { rows } = app;
  let all = report.calm === 'healthy' ? 'Nothing to fix' : 'About this run';
  if (rows.length > 0) all = plural(rows.length, 'finding');
  return (
    <section class="verdict" aria-label="Verdict">
      <Busy recording={recording} />
      <div class="verdict-said">
        <h1>
          <bdi>
            {held(lead)}
            {rest && (
              <>
                <span class="hidden-text">{sign}</span> <small>{held(rest)}</small>
              </>
            )}
          </bdi>
        </h1>
        <p class="verdict-facts">
          <button type="button" class="linklike all-findings" aria-expanded={panel} onClick={() => app.openPanel(!panel)}>
            {all} <span aria-hidden="true">{panel ? '▾' : '▸'}</span>
          </button>
          {job?.verdict && job.verdict.text !== own && !job.verdict.text.endsWith(own) && (
            <span class="facts">
              Rank {report.rank}: <bdi>{held(own)}</bdi>
            </span>
          )}
          <Since />
        </p>
      </div>
    </section>
  );
}

/** The one number: how much of its time the GPU was busy; without a GPU, how much of it went into steps. */
function Busy({ recording }: { recording: RecordingReply }) {
  const budget = useBudget(recording);
  const busy = budget?.parts.find(({ name }) => name === 'busy');
  if (!budget?.known_s) return null;
  return (
    <p class="busy">
      <b>
        {share(busy?.seconds ?? 0, budget.known_s)}
      </b>
      <small>
        {clean(busy?.title ?? 'GPU busy', 30)}, {duration(budget.known_s)}
      </small>
    </p>
  );
}

/** Of the lane that is shown. */
function useBudget(recording: RecordingReply): Sums | undefined {
  const chosen = useApp((state) => state.gpus[recording.id]);
  return budgetOf(recording, timeLane(recording, chosen)?.id);
}

/** The change that saves most, as code to be copied or as the question to answer first. */
export function FixFirst({ recording }: { recording: RecordingReply }) {
  const { timeline } = useTab();
  const job = useApp((state) => state.job);
  const { fix } = headline(recording.report, job);
  if (!fix) return null;
  const { item, range } = remedyOf(fix, fix.first);
  const { advice } = item;
  const code = asDiff(cleanCode(advice?.before), cleanCode(advice?.code));
  const words = clean(advice?.text, 300);
  if (!code && !words) return null;
  const worth = item.saves_s || advice?.question ? gain(item.of_s ?? recording.report.wall_s, range) : '';
  let title = worth || item.tried ? 'Fix first' : 'What holds it back';
  if (advice?.question) title = 'Find out first';
  return (
    <aside class="fix-first" style={{ '--cause': partColour(item) }} aria-label="Fix first">
      <p>
        <button type="button" class="fix-open" title="Why, and what to check first" onClick={() => timeline.choose(item.id)}>
          <b>{title}</b>
        </button>
        {item.tried && <small class="clip">{clean(item.tried.text, 80)}</small>}
        {code && (
          <button type="button" class="linklike" title="Copy the code  c" onClick={() => timeline.copyFix(fix)}>
            copy
          </button>
        )}
      </p>
      {code ? (
        <pre tabIndex={0}>
          {code.split('\n').map((line, i) => (
            <span key={i} class={line.startsWith('-') ? 'del' : undefined}>
              {line.replace(/^[+-] /, '')}
              {'\n'}
            </span>
          ))}
        </pre>
      ) : (
        <p class="fix-words">{held(words)}</p>
      )}
    </aside>
  );
}

/** The colour of the time that a finding takes; neutral where it takes none of its own. */
export const partColour = (item: Pick<WordedFinding, 'part'>): string => `var(--${/^[a-z]{3,12}$/.test(item.part ?? '') ? item.part : 'slate'})`;

/** Where the GPU's time went, in one bar, and the names of the parts that are too narrow for theirs: each part is its colour in the lane below; of the measured range, if there is one. */
export function Budget({ recording }: { recording: RecordingReply }) {
  const { app, timeline } = useTab();
  const measure = useApp((state) => state.measure);
  const lit = useApp((state) => state.lit);
  useSelect(timeline.drawn, ({ count }) => (measure ? count : 0));
  const sums = useBudget(recording);
  if (!sums?.known_s) return null;
  const parts = (measure && inRange(timeline, sums)) ?? sums.parts;
  const all = parts.reduce((total, { seconds }) => total + seconds, 0) || 1;
  const scales = lossScales(recording, sums);
  const words = (name: string, title: string, seconds: number): [string, string, string] => {
    const about = isEstimate(name) || (sums.is_estimate && isLoss(name)) ? '≈ ' : '';
    return [clean(title, 40), `${about}${share(seconds, all)}`, about + duration(seconds * (scales.get(name) ?? 1))];
  };
  return (
    <section class="budget" aria-label="Where the time went">
      <ul>
        {parts.map(({ name, title, seconds }) => {
          const [called, percent, took] = words(name, title, seconds);
          const light = (lit: boolean) => (): void => app.state.set({ lit: lit && isLoss(name) ? name : null });
          return (
            <li key={name} class={lit !== null && lit !== name ? 'faded' : undefined} style={{ flexGrow: seconds / all }}>
              <button
                type="button"
                class={isEstimate(name) ? 'budget-part hatched' : 'budget-part'}
                data-part={name}
                style={{ background: `var(--${name})`, color: `var(--on-${name}, inherit)` }}
                title={`${called} ${percent}: ${took}`}
                aria-label={`${called} ${percent}, ${took}`}
                onPointerEnter={light(true)}
                onPointerLeave={light(false)}
                onFocus={light(true)}
                onBlur={light(false)}
                onClick={() => timeline.choosePart(name, null)}
              >
                <span class="wide-name">{called} </span>
                <b>{percent}</b>
              </button>
            </li>
          );
        })}
      </ul>
      <p class="budget-names" aria-hidden="true">
        {parts.filter(({ seconds }) => seconds > LEAST_NAMED * all).map(({ name, title, seconds }) => (
          <small key={name} class={lit !== null && lit !== name ? 'faded' : undefined} style={{ '--share': seconds / all }}>
            <i class={isEstimate(name) ? 'swatch hatched' : 'swatch'} style={{ background: `var(--${name})` }} /> {words(name, title, seconds).slice(0, 2).join(' ')}
          </small>
        ))}
      </p>
      {measure && <small class="budget-range">of the measured {duration(all)}</small>}
    </section>
  );
}

/** The parts of the measured range, from the lane's own buckets. */
function inRange({ frame }: ReturnType<typeof useTab>['timeline'], { lane }: Sums): Sums['parts'] | null {
  const source = frame?.sources[0];
  const own = source?.recording.lanes.find(({ id }) => id === lane);
  if (!frame?.measure || !source || !own) return null;
  const { axis, level, measure } = frame;
  const range = shift(measure, -source.shift);
  const length = axis === 'time' ? (range.end - range.start) / 1e9 : 1;
  return own.series.flatMap(({ name, title }) => {
    // Shares are of time: on the axis of steps their mean is that of the steps.
    const mean = valueOver(source.tiles, axis, level, own, name, range)?.mean ?? 0;
    return mean > 0 ? [{ name, title, seconds: (mean / 100) * length }] : [];
  });
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
    <span class={since.got > 1 ? 'since' : undefined}>
      {since.got > 1 && <span aria-hidden="true">✓ </span>}Since <bdi>{runName(since.run)}</bdi>: {since.gone.map((cause) => causeStyle(cause).title).join(', ')} gone; {estimated && `estimated gain ${estimated}, `}
      measured <b>{times(since.got)}</b>.{' '}
      {since.slower && 'This run is slower all the same. '}
      {there && !compared && (
        <button type="button" class="linklike" onClick={compare}>
          compare
        </button>
      )}
    </span>
  );
}
