/** The server's words: those for causes, and what is counted in each category of time. */
import type { CauseWords, Words } from '../api/types.ts';
import { clean, humanise } from '../math/text.ts';

let words: Partial<Words> = {};

/** Takes over the words of a reply; without any (an older report in one file) names stand for themselves. */
export function learn(said: Words | undefined): void {
  if (said) words = said;
}

const own = <T>(of: Readonly<Record<string, T>> | undefined, key: string): T | undefined => (of && Object.hasOwn(of, key) ? of[key] : undefined);

export const wordsOfCause = (cause: string): CauseWords | undefined => own(words.causes, cause);

export const titleOfCause = (cause: string): string => clean(wordsOfCause(cause)?.title, 60) || 'Bottleneck';

export function titleOf(account: 'host' | 'gpu' | 'host_step', key: string): { title: string; explanation: string } {
  const [title, about] = own(words[account], key) ?? ['', ''];
  return { title: clean(title, 60) || humanise(key), explanation: clean(about, 200) };
}
