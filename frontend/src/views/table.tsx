/** The heads of a table's columns, and a table that scrolls. */
import type { ComponentChildren } from 'preact';

/** `words`: heads of the columns that hold text, which begins at the left. */
export function Heads({ of, words = [] }: { of: readonly string[]; words?: readonly string[] }) {
  return (
    <thead>
      <tr>
        {of.map((head, i) => (
          <th scope="col" key={i} class={words.includes(head) ? 'words' : undefined}>
            {head}
          </th>
        ))}
      </tr>
    </thead>
  );
}

interface Props {
  name: string;
  caption: ComponentChildren;
  heads: readonly string[];
  words?: readonly string[];
  children: ComponentChildren;
}

/** A table that scrolls sideways in its own box; `words`: the columns that hold text, the others hold numbers. */
export function ScrolledTable({ name, caption, heads, words, children }: Props) {
  return (
    <div class="table-scroll" tabIndex={0} role="region" aria-label={`${name} as a table`}>
      <table>
        <caption>{caption}</caption>
        <Heads of={heads} words={words} />
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
