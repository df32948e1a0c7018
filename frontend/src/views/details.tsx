/** The selected span or finding: its evidence against the thresholds, and what to change. */
import { stepsText } from '../words/labels.ts';
import { useState } from 'preact/hooks';
import type { EvidenceRow, Finding, RecordingReply, Report } from '../api/types.ts';
import { inOrder } from '../lanes/spans.ts';
import { clock, elapsed, nanoseconds, percent, seconds, times } from '../math/format.ts';
import { clean, cleanCode, held } from '../math/text.ts';
import { evidenceRows } from '../math/evidence.ts';
import { causeStyle, culprit } from '../words/causes.ts';
import { Contrast } from './contrast.tsx';
import { useApp, useTab } from './hooks.ts';
import { Measure } from './measure.tsx';
import { Small } from './small.tsx';
import { TracedWindow } from './window.tsx';

/** Longer values stand below their label. */
const LONG = 22;

export function Details({ recording }: { recording: RecordingReply }) {
  const { app } = useTab();
  useApp((state) => state.selected);
  const measured = useApp((state) => state.measure !== null);
  const window = useApp((state) => state.window);
  const selection = app.selection;
  return (
    <aside class="details" aria-label="Details">
      {measured && <Measure />}
      {window ? <TracedWindow recording={recording} open={window} /> : selection ? <Selected recording={recording} item={selection.item} id={selection.id} /> : !measured && <Hint recording={recording} />}
    </aside>
  );
}

function Hint({ recording }: { recording: RecordingReply }) {
  const some = (recording.report.spans?.length ?? 0) + (recording.report.findings?.length ?? 0) > 0;
  return (
    <div class="hint">
      <p>{some ? 'Choose a span to see its evidence and what to change.' : 'Drag over the lanes to measure a range.'}</p>
      <p>
        <kbd>[</kbd> <kbd>]</kbd> go from span to span, <kbd>W</kbd> <kbd>A</kbd> <kbd>S</kbd> <kbd>D</kbd> move about, <kbd>?</kbd> shows
        all keys.
      </p>
    </div>
  );
}

function Selected({ recording, item, id }: { recording: RecordingReply; item: Finding; id: string }) {
  const { app, timeline } = useTab();
  const style = causeStyle(item.cause);
  const order = inOrder(recording.report.spans ?? []);
  const position = order.findIndex((span) => span.id === id);
  const rows = evidenceRows(item).filter(
    ({ name }) => !item.saves_s || (name !== 'faster_up_to' && name !== 'promise_rests_on'), // said beside the advice
  );
  const length = typeof item.start_ns === 'number' && typeof item.end_ns === 'number' ? item.end_ns - item.start_ns : null;
  return (
    <article class="selected" style={{ '--cause': `var(--${style.colour})` }}>
      <header class="selected-nav">
        <span>{position >= 0 ? `Span ${position + 1} of ${order.length}` : 'For the whole run'}</span>
        {order.length > 1 && (
          <>
            <Small sign="‹" name="Previous span" keys="[" onClick={() => timeline.toSpan(-1)} />
            <Small sign="›" name="Next span" keys="]" onClick={() => timeline.toSpan(1)} />
          </>
        )}
        {position >= 0 && (
          <Small sign="zoom" name="Zoom to this span" keys="f" onClick={() => timeline.showSpan(item)} />
        )}
        <Small sign="✕" name="Close details" keys="Esc" onClick={() => app.select(null)} />
      </header>
      <h2>
        <span class="glyph" aria-hidden="true">
          {style.glyph}
        </span>{' '}
        <bdi>{clean(item.title, 160) || style.title}</bdi>
      </h2>
      <p class="facts">
        {held([
          stepsText(item),
          typeof item.start_ns === 'number' ? `began at ${elapsed(item.start_ns - recording.extent.start_ns)} (${clock(item.start_ns)})` : '',
          length !== null ? `took ${nanoseconds(length)}` : '',
          [typeof item.lost_s === 'number' && `lost ${seconds(item.lost_s)}`, typeof item.severity === 'number' && `${percent(item.severity * 100)} of its time`].filter(Boolean).join(', '),
          culprit(item),
        ]
          .filter(Boolean)
          .join(' · '))}
      </p>
      <Contrast item={item} />
      <Advice item={item} report={recording.report} />
      {rows.length > 0 && (
        <table class="evidence">
          <caption>Evidence</caption>
          <thead>
            <tr>
              <th scope="col">what</th>
              <th scope="col">seen</th>
              <th scope="col">rule</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => {
              const label = (
                <>
                  {row.label}
                  <Bullet bar={row.bar} />
                </>
              );
              if (row.value.length <= LONG)
                return (
                  <tr key={row.name}>
                    <th scope="row" title={row.name}>
                      {label}
                    </th>
                    <td colSpan={row.rule ? 1 : 2}>
                      <bdi>{row.value}</bdi>
                    </td>
                    {row.rule && <td>{row.rule}</td>}
                  </tr>
                );
              return (
                <>
                  <tr class="long">
                    <th scope="rowgroup" colSpan={3} title={row.name}>
                      {label}
                    </th>
                  </tr>
                  <tr>
                    <td class="long" colSpan={3}>
                      <bdi>{row.value}</bdi>
                    </td>
                  </tr>
                </>
              );
            })}
            {item.confidence && (
              <tr>
                <th scope="row">confidence</th>
                <td colSpan={2}>{clean(item.confidence, 40)}</td>
              </tr>
            )}
          </tbody>
        </table>
      )}
    </article>
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

/** What following the advice is worth, of what is lost; the terminal says the same. */
function Saving({ item, report }: { item: Finding; report: Report }) {
  const { saves_s: saves, lost_s: lost, evidence } = item;
  if (!saves) return null;
  // While training goes on, the time it took is newer than the diagnosis.
  const known = report.status !== 'live' && [...(report.spans ?? []), ...(report.findings ?? [])].includes(item);
  const wall = known ? (report.wall_s ?? 0) : 0;
  const gain = wall > saves ? wall / (wall - saves) : 0;
  const run = gain >= 1.05 ? times(gain) : '';
  const faster = evidence?.faster_up_to;
  const here = typeof faster === 'number' && faster >= 1.05 ? times(faster) : '';
  return (
    <p class="saving">
      <b>Saves up to {held(seconds(saves))}</b>
      {lost && saves < 0.95 * lost ? ` of the ${held(seconds(lost))} lost` : ''}
      {run && `: this run up to ${run} faster`}
      {here && here !== run && `, these steps up to ${here}`}
      {evidence?.promise_rests_on ? <span class="dim"> (judging by {clean(evidence.promise_rests_on)})</span> : ''}
    </p>
  );
}

function Advice({ item, report }: { item: Finding; report: Report }) {
  const { app } = useTab();
  const [copied, setCopied] = useState(false);
  const text = clean(item.advice?.text, 2000);
  const code = cleanCode(item.advice?.code);
  if (!text && !code) return null;
  const copy = async (): Promise<void> => {
    if (await copyText(code)) {
      setCopied(true);
      setTimeout(() => setCopied(false), 1600);
    } else app.notice('Copying is not allowed here: select the code instead');
  };
  return (
    <div class="advice">
      <header class="selected-nav">
        <h3>What to change</h3>
        {code && (
          <button type="button" class="small" onClick={() => void copy()}>
            {copied ? 'copied ✓' : 'copy code'}
          </button>
        )}
      </header>
      <Saving item={item} report={report} />
      {text && (
        <p>
          <bdi>{held(text)}</bdi>
        </p>
      )}
      {code && (
        <div class="code">
          <pre tabIndex={0} aria-label="Code to change">
            <code>{breakable(code)}</code>
          </pre>
        </div>
      )}
    </div>
  );
}

/** Long lines break behind signs, not inside of names, and comments are dim; what is copied is the same. */
function breakable(code: string) {
  return code.split(/( *# .*)|(?<=[=,(.])(?=\S)/).map((part, i) => (
    <>
      {i > 0 && <wbr />}
      {/^ *# /.test(part ?? '') ? <span class="dim">{part}</span> : part}
    </>
  ));
}

/** Clipboard access needs a secure context and may be denied in a frame: an old way is tried then. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement('textarea');
    area.value = text;
    area.style.cssText = 'position:fixed;opacity:0';
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    return done;
  }
}
