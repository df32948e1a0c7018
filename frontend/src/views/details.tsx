/** The selected span or finding: its evidence against the thresholds, and what to change. */
import { stepsText } from '../words/labels.ts';
import type { EvidenceRow, WordedFinding, RecordingReply } from '../api/types.ts';
import { positionText, remedyOf } from '../state/findings.ts';
import { clock, duration, elapsed, nanoseconds, percent } from '../math/format.ts';
import { capitalized, clean, held } from '../math/text.ts';
import { causeBeside, causeStyle, culprit, titleOf } from '../words/causes.ts';
import { About, Findings } from './findings.tsx';
import { partColour } from './verdict.tsx';
import { Fix, wallOf } from './fix.tsx';
import { whyLaneDiffers, shortenedBy } from '../timeline/without.ts';
import { useApp, useTab } from './hooks.ts';
import { Measure } from './measure.tsx';
import { Small } from './small.tsx';
import { Heads } from './table.tsx';
import { TracedWindow } from './window.tsx';

/** So many numbers are shown at once. */
const FIRST = 3;
/** Longer values stand below their label. */
const LONG = 22;

/** Closed until something is asked for. */
export function Details({ recording }: { recording: RecordingReply }) {
  const { app } = useTab();
  useApp((state) => state.selected);
  const measured = useApp((state) => state.measure !== null);
  const window = useApp((state) => state.window);
  useApp((state) => state.panel);
  const selection = app.selection;
  if (!app.panelOpen) return null;
  return (
    <aside class="details" aria-label="Details">
      {measured && <Measure />}
      {window && <TracedWindow recording={recording} open={window} />}
      {!window && selection && <Selected recording={recording} item={selection} />}
      <section class="all">
        <header class="selected-nav">
          <span>{app.rows.length > 0 ? `All findings` : 'This run'}</span>
          <Small sign="✕" name="Close details" keys="Esc" onClick={() => app.openPanel(false)} />
        </header>
        <Findings recording={recording} />
      </section>
      <About recording={recording} />
    </aside>
  );
}

/** The selected finding: its cause, cost, remedy and evidence. */
function Selected({ recording, item }: { recording: RecordingReply; item: WordedFinding }) {
  const { app, timeline } = useTab();
  const style = causeStyle(item.cause);
  useApp((state) => state.job);
  const { rows: groups } = app;
  const group = groups.find(({ list }) => list.some((finding) => finding.id === item.id));
  const remedy = group && remedyOf(group, item);
  const spans = recording.report.spans.length;
  const beside = whyLaneDiffers(app, item.part);
  const placed = typeof item.start_step === 'number' || typeof item.start_ns === 'number';
  const rows = (item.rows ?? []).filter(
    ({ name }) => !(item.saves_s || item.advice?.question) || (name !== 'faster_up_to' && name !== 'promise_rests_on'), // said beside the advice
  );
  const length = typeof item.start_ns === 'number' && typeof item.end_ns === 'number' ? item.end_ns - item.start_ns : null;
  return (
    <article class="selected" style={{ '--cause': partColour(item) }}>
      <header class="selected-nav">
        <span>{capitalized(positionText(groups, item.id))}</span>
        {spans > 1 && (
          <>
            <Small sign="‹" name="Previous span" keys="[" onClick={() => timeline.toSpan(-1)} />
            <Small sign="›" name="Next span" keys="]" onClick={() => timeline.toSpan(1)} />
          </>
        )}
        {placed && (
          <Small sign="zoom" name="Zoom to this span" keys="f" onClick={() => timeline.showSpan(item)} />
        )}
      </header>
      <h2>
        <span class="glyph" aria-hidden="true">
          {style.glyph}
        </span>{' '}
        <bdi>{held(titleOf(item))}</bdi>
      </h2>
      <p class="facts">
        {held([
          causeBeside(item),
          placed ? stepsText(item) : 'the whole run',
          typeof item.start_ns === 'number' ? `began at ${elapsed(item.start_ns - recording.extent.start_ns)} (${clock(item.start_ns)})` : '',
          length !== null ? `took ${nanoseconds(length)}` : '',
          [typeof item.lost_s === 'number' && `lost ${duration(item.lost_s)}${group && group.list.length > 1 && group.lost !== null ? ` of ${duration(group.lost)} in all ${group.list.length}` : ''}`, typeof item.severity === 'number' && `${percent(item.severity * 100)} of its time`].filter(Boolean).join(', '),
          culprit(item),
        ]
          .filter(Boolean)
          .join(' · '))}
      </p>
      {remedy && <Fix item={remedy.item} saves={remedy.range} wall={wallOf(recording.report)} command={remedy.command} />}
      {beside && <p class="dim beside">{beside}</p>}
      <WithoutIt id={item.id} />
      <Evidence rows={rows.slice(0, FIRST)} caption="Evidence" />
      {rows.length > FIRST && (
        <details class="aside">
          <summary>{rows.length - FIRST} more numbers</summary>
          <Evidence rows={rows.slice(FIRST)} caption={`${clean(item.confidence, 40)}`} />
        </details>
      )}
    </article>
  );
}

/** Draws the run as it would be without this loss. */
function WithoutIt({ id }: { id: string }) {
  const { app } = useTab();
  const shown = useApp((state) => state.without === id);
  if (!shortenedBy(app, id)) return null;
  const show = (): void => {
    app.look(null);
    app.state.set({ without: shown ? null : id });
  };
  return (
    <button type="button" class="pill without" aria-pressed={shown} title="The lane without this loss, and how long the run would take" onClick={show}>
      {shown ? 'Show the run as it was' : 'Show without it'}
    </button>
  );
}

/** What a finding rests on: what was seen, and the threshold it passed. */
function Evidence({ rows, caption }: { rows: EvidenceRow[]; caption: string }) {
  if (rows.length === 0) return null;
  return (
    <table class="evidence">
      <caption>{caption}</caption>
      <Heads of={['what', 'seen', 'threshold']} />
      <tbody>
        {rows.map((row) => {
          const [name, value] = [clean(row.name), clean(row.value, 200)];
          const label = (
            <>
              {clean(row.label)}
              <Bullet bar={row.bar} />
            </>
          );
          if (value.length <= LONG)
            return (
              <tr key={name}>
                <th scope="row" title={name}>
                  {label}
                </th>
                <td colSpan={row.rule ? 1 : 2}>
                  <bdi>{value}</bdi>
                </td>
                {row.rule && <td>{clean(row.rule, 40)}</td>}
              </tr>
            );
          return (
            <>
              <tr class="long">
                <th scope="rowgroup" colSpan={3} title={name}>
                  {label}
                </th>
              </tr>
              <tr>
                <td class="long" colSpan={3}>
                  <bdi>{value}</bdi>
                </td>
              </tr>
            </>
          );
        })}
      </tbody>
    </table>
  );
}

/** What was seen as a bar, the rule's threshold as a mark on it. */
function Bullet({ bar }: { bar: EvidenceRow['bar'] }) {
  if (!bar) return null;
  const most = Math.max(...bar) * 1.1;
  return (
    <span class="bullet" aria-hidden="true">
      <i style={{ width: `${(100 * bar[0]) / most}%` }} />
      <b style={{ left: `${(100 * bar[1]) / most}%` }} />
    </span>
  );
}
