/** What to change about a finding, and what that is worth: under the headline, or among the details. */
import { useState } from 'preact/hooks';
import type { Finding } from '../api/types.ts';
import { seconds, times } from '../math/format.ts';
import { asDiff, clean, cleanCode, held } from '../math/text.ts';
import { causeStyle } from '../words/causes.ts';
import { useTab } from './hooks.ts';

interface Props {
  item: Finding;
  /** Seconds lost and recoverable, of all findings with this remedy. */
  lost: number | null;
  saves: number | null;
}

/** `heading`: the level that follows the one above. */
export function Fix({ item, lost, saves, heading: Heading }: Props & { heading: 'h2' | 'h3' }) {
  const text = clean(item.advice?.text, 2000);
  const code = asDiff(cleanCode(item.advice?.before), cleanCode(item.advice?.code));
  if (!text && !code) return null;
  return (
    <div class="advice" style={{ '--cause': `var(--${causeStyle(item.cause).colour})` }}>
      <Heading>How to fix it</Heading>
      {text && (
        <p>
          <bdi>{held(text)}</bdi>
        </p>
      )}
      {code && <Code code={code} />}
      <Saving item={item} lost={lost} saves={saves} />
    </div>
  );
}

/** What following the advice is worth, of what is lost; the terminal says the same. */
function Saving({ item, lost, saves }: Props) {
  if (!saves) return null;
  const { evidence } = item;
  const faster = evidence?.faster_up_to;
  return (
    <p class="saving">
      <b>Recoverable: up to {held(seconds(saves))}</b>
      {lost && saves < 0.95 * lost ? ` of the ${held(seconds(lost))} lost` : ''}
      {typeof faster === 'number' && faster >= 1.05 ? `; these steps up to ${times(faster)} faster` : ''}
      {evidence?.promise_rests_on ? <span class="dim"> (judging by {clean(evidence.promise_rests_on)})</span> : ''}
    </p>
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
                const kind = line.startsWith('-') ? 'del' : line.startsWith('+') ? 'ins' : 'span';
                const Line = kind as 'ins';
                return (
                  <Line key={i} class="line">
                    {breakable(line)}
                  </Line>
                );
              })
            : breakable(code)}
        </code>
      </pre>
      <button type="button" class="small" onClick={() => void copy()}>
        {copied ? 'copied ✓' : 'copy code'}
      </button>
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
