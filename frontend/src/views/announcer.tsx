/** Reads the keyboard cursor's place, and the values there, to a screen reader. */
import { useEffect, useState } from 'preact/hooks';
import { useSelect, useTab } from './hooks.ts';
import { laneContent } from './tooltip.tsx';

const QUIET_MS = 250;

/** For screen readers: the values under a cursor that keys move, and the finding that is selected. */
export function Announcer() {
  const { app, timeline } = useTab();
  const cursor = useSelect(app.cursor, (value) => value);
  const selected = useSelect(app.state, (state) => state.selected);
  const [text, setText] = useState('');
  useEffect(() => {
    if (!cursor.byKeyboard || cursor.at === null || cursor.laneKey === null) return;
    const timer = setTimeout(() => {
      const content = laneContent(timeline, cursor.laneKey as string);
      if (content) setText([content.title, ...content.lines.map(({ title, value }) => `${title} ${value}`)].join(', '));
    }, QUIET_MS);
    return () => clearTimeout(timer);
  }, [cursor]);
  useEffect(() => {
    const { selection } = app;
    if (selection && app.state.get().touched) setText(`Selected: ${selection.title ?? selection.cause}`);
  }, [selected]);
  return (
    <div class="hidden-text" role="status" aria-live="polite">
      {text}
    </div>
  );
}
