/** Messages as text, with their `code` set as code. Text nodes only: nothing in a message is markup. */
import { clean, codeParts } from '../math/text.ts';

export function Prose({ text, most = 300 }: { text: unknown; most?: number }) {
  return <>{codeParts(clean(text, most)).map(({ code, text: part }) => (code ? <code>{part}</code> : part))}</>;
}

/** What to do about a message, on a line of its own. */
export function Remedy({ text }: { text: unknown }) {
  if (!text) return null;
  return (
    <span class="cure">
      <span aria-hidden="true">→ </span>
      <bdi>
        <Prose text={text} />
      </bdi>
    </span>
  );
}
