/** What to change about a finding, and what that is worth. */
import { useState } from 'preact/hooks';
import type { WordedFinding, WordedReport } from '../api/types.ts';
import { type Bounds, gain } from '../math/format.ts';
import { advised, asDiff, clean, cleanCode, held, inShell } from '../math/text.ts';
import { useApp, useTab } from './hooks.ts';

interface Props {
  item: WordedFinding;
  /** Seconds that the remedy saves of all findings that it mends: the least and the most. */
  saves: Bounds | null;
  /** Seconds of the run; null while it goes on. */
  wall: number | null;
}

/** A remedy: what it saves, the code to change, the command that tries it, why, and what to check first. */
export function Fix({ item, saves, wall, command }: Props & { command: string }) {
  const text = clean(item.advice?.text, 2000);
  const code = asDiff(cleanCode(item.advice?.before), cleanCode(item.advice?.code));
  if (!text && !code) return null;
  const { why, checks } = advised(text);
  return (
    <div class="advice">
      <Saving item={item} saves={saves} wall={wall} />
      {code && <Code code={code} />}
      {command && <Command text={command} />}
      {why && (
        <p>
          <bdi>{held(why)}</bdi>
        </p>
      )}
      {checks.length > 0 && (
        <ul class="checks" aria-label="Check first">
          {checks.map((check) => (
            <li key={check}>
              <bdi>{held(check)}</bdi>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

/** Seconds of a run that has ended: of a live one the diagnosis is older than the length. */
export const wallOf = (report: Pick<WordedReport, 'status' | 'wall_s'>): number | null => (report.status === 'live' ? null : (report.wall_s ?? null));

/** What following the advice is worth; the terminal says the same. */
function Saving({ item, saves, wall }: Props) {
  if (item.tried)
    return (
      <p class="saving">
        <b>tried: {clean(item.tried.text)}</b>
      </p>
    );
  const faster = item.saves_s || item.advice?.question ? gain(item.of_s ?? wall, saves) : '';
  if (!faster) return null;
  const basis = item.evidence?.promise_rests_on;
  return (
    <p class="saving">
      <b>
        {item.advice?.question ? 'If yes: ' : ''}
        {item.of_s ? 'The script: expected speedup' : 'Expected speedup'} {faster}
      </b>
      {basis ? <span class="dim"> (estimated from {clean(basis)})</span> : ''}
    </p>
  );
}

/** A command of ours over this log directory; a click copies it. */
export function Command({ text: said, kind = 'command', children }: { text: string; kind?: string; children?: string }) {
  const text = clean(said, 400);
  const { app } = useTab();
  const logdir = useApp((state) => state.runs?.logdir);
  const whole = text.replace(/^gpu-util try(?= )/, `$&${logdir ? ` --log-dir ${inShell(logdir)}` : ''}`);
  const copy = async (): Promise<void> => app.notice(`${(await copyText(whole)) ? 'Copied' : 'Type'}: ${whole}`);
  return (
    <button type="button" class={kind} title={`Copy ${whole}`} onClick={() => void copy()}>
      {children ?? <code>{text}</code>}
    </button>
  );
}

/** Lines that go (`- `) and that come (`+ `), as in a diff; code without such lines is shown as it is. */
export const isDiff = (code: string): boolean => /^\+ ?\S/m.test(code) && /^[-+]/.test(code);

/** What is to be pasted: of a diff, what stands there afterwards. */
export const pasted = (code: string): string =>
  isDiff(code)
    ? code
        .split('\n')
        .filter((line) => !line.startsWith('-'))
        .map((line) => line.replace(/^[+ ] ?/, ''))
        .join('\n')
    : code;

/** Code to copy; lines that go and come are marked where it replaces something. */
function Code({ code }: { code: string }) {
  const { app } = useTab();
  const [copied, setCopied] = useState(false);
  const copy = async (): Promise<void> => {
    if (await copyText(pasted(code))) {
      setCopied(true);
      setTimeout(() => setCopied(false), 1600);
    } else app.notice('Copying is not allowed here: select the code instead');
  };
  return (
    <div class="code">
      <pre tabIndex={0} aria-label="Code to change">
        <code>
          {isDiff(code)
            ? code.split('\n').map((line, i) => {
                const kind = ({ '-': 'del', '+': 'ins' } as const)[line.charAt(0)] ?? 'span';
                const Line = kind as 'ins';
                return (
                  <Line key={i} class="line">
                    {shaded(line)}
                  </Line>
                );
              })
            : shaded(code)}
        </code>
      </pre>
      <button type="button" class="small" onClick={() => void copy()}>
        {copied ? 'copied ✓' : 'copy code'}
      </button>
    </div>
  );
}

/** Comments are dim; what is copied is the same. */
const shaded = (code: string) => code.split(/( *# .*)/).map((part) => (/^ *# /.test(part) ? <span class="dim">{part}</span> : part));

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
