/** Names come from files and may hold anything: what is shown is inert, one line, and short. */

// C0, C1, zero-width and bidirectional controls, line and paragraph separators, lone surrogates.
const UNSAFE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** A sentence's beginning; the rest stays as it is ("GPU-hours"). */
export const capitalized = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

/** `value` as one harmless line of at most `most` characters. */
export function clean(value: unknown, most = 120): string {
  const raw = String(value ?? '');
  const head = raw.slice(0, most * 4).replace(UNSAFE, (c) => (c === '\n' || c === '\t' || c === '\r' ? ' ' : '\ufffd'));
  return head.length > most ? `${head.slice(0, most - 1).trimEnd()}…` : head;
}

/** Keeps a number and its unit on one line. */
export const held = (text: string): string => text.replace(/(\d) (?=(?:%|[nµm]?s|[mhd]|[GM]iB)(?![\w]))/g, '$1\u00a0');

/** No line that a person wrote is longer. */
const LONGEST_LINE = 500;

/** What becomes of these in code; other unsafe characters are replaced. */
const KEPT_AS: Record<string, string> = { '\n': '\n', '\t': '\t', '\r': '' };

/** Code keeps its lines and tabs; everything else is made harmless as in `clean`. */
export function cleanCode(value: unknown, most = 8000): string {
  const raw = typeof value === 'string' ? value : '';
  const head = raw.slice(0, most).replace(UNSAFE, (c) => KEPT_AS[c] ?? '\ufffd');
  const lines = head.split('\n').map((line) => (line.length > LONGEST_LINE ? `${line.slice(0, LONGEST_LINE)}…` : line));
  return raw.length > most ? `${lines.join('\n')}…` : lines.join('\n');
}

/** "input_wait_share" -> "input wait share". */
export const humanise = (name: string): string => clean(name).replace(/_/g, ' ').trim();

/** `text` cut at its `code` spans; a backtick without a partner stays as it is. */
export function codeParts(text: string): { code: boolean; text: string }[] {
  return text
    .split(/`([^`]+)`/)
    .map((part, i) => ({ code: i % 2 === 1, text: part }))
    .filter((part) => part.text !== '');
}

/** Whole numbers in short: [0, 1, 3, 4, 5, 7] -> "0, 1, 3–5, 7". */
export function ranges(numbers: readonly number[]): string {
  const runs: [number, number][] = [];
  for (const value of [...new Set(numbers)].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && value === last[1] + 1) last[1] = value;
    else runs.push([value, value]);
  }
  const text = ([first, last]: [number, number]): string => {
    if (first === last) return `${first}`;
    return last === first + 1 ? `${first}, ${last}` : `${first}–${last}`;
  };
  return runs.map(text).join(', ');
}

/** Code with what it replaces, as a diff; the code alone where that is not known. */
export function asDiff(before: string, code: string): string {
  const signed = (text: string, sign: string): string[] => text.split('\n').map((line) => `${sign} ${line}`);
  return before && code ? [...signed(before, '-'), ...signed(code, '+')].join('\n') : code;
}

/** What an advice says, and what to check before following it: its questions, and what it changes or asks of the code. */
export function advised(text: string): { why: string; checks: string[] } {
  const [said, checks]: [string[], string[]] = [[], []];
  for (const sentence of text.split(/(?<=[.?]) (?=[A-Z_])/)) {
    const [first = '', ...rest] = sentence.replace(/^If so, ./, (begin) => begin.slice(-1).toUpperCase()).replace(/\.$/, '').split('; ');
    if (sentence.endsWith('?')) checks.push(sentence);
    else if (first) said.push(`${first}.`);
    checks.push(...rest.map((clause) => `${capitalized(clause)}.`));
  }
  return { why: said.join(' '), checks };
}

/** A word for a shell. */
export const inShell = (word: string): string => (/^[\w./:=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
