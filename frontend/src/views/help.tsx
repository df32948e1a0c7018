/** All keys and gestures. */
import { useEffect, useRef } from 'preact/hooks';
import { useApp, useTab } from './hooks.ts';

const KEYS: [string, [string, string][]][] = [
  [
    'Move',
    [
      ['W / S', 'zoom in / out at the cursor'],
      ['A / D', 'pan left / right'],
      ['+ / −', 'zoom in / out'],
      ['← / →', 'pan; on the focused lanes: move the cursor'],
      ['0', 'the whole run'],
      ['e', 'its end; of a live run: follow it'],
      ['Ctrl + K, g', 'find a lane, a run, a step or a command'],
      ['f', 'fit the measured range or the selected bottleneck'],
      ['z or ⌫', 'undo the last zoom'],
    ],
  ],
  [
    'Bottlenecks and cursor',
    [
      ['[ / ] or , / .', 'previous / next place of this cause'],
      ['{ / }', 'previous / next cause'],
      ['c', 'copy its fix'],
      ['↑ / ↓', 'lane above / below (lanes focused)'],
      ['Enter', 'open the bottleneck or profiler window at the cursor'],
      ['m', 'mark the cursor; again: measure between both'],
      ['t', 'the numbers as tables'],
      ['l', 'the table of all runs'],
      ['Esc', 'clear range, cursor, selection'],
      ['?', 'this help'],
    ],
  ],
  [
    'Pointer',
    [
      ['drag; touch: hold, then drag', 'measure a range'],
      ['click a step (zoomed in)', 'where that step went'],
      ['click a legend', 'hide or show its series'],
      ['click a colour, in bar or lane', 'what took this time, and its fix'],
      ['drag on the axis or the line above it', 'zoom to it'],
      ['Shift + drag, touch drag', 'pan'],
      ['Ctrl / ⌘ + wheel, pinch', 'zoom at the pointer'],
      ['Shift + wheel, sideways', 'pan'],
      ['double-click', 'zoom in; on a colour: zoom to it'],
    ],
  ],
];

/** The dialog with all keys and gestures. */
export function Help() {
  const { app } = useTab();
  const open = useApp((state) => state.help);
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    if (!element) return;
    if (open && !element.open) element.showModal();
    if (!open && element.open) element.close();
  }, [open]);
  return (
    <dialog
      class="help"
      ref={dialog}
      aria-label="Keys and gestures"
      onClose={() => app.state.set({ help: false })}
      onClick={(event) => event.target === dialog.current && app.state.set({ help: false })}
    >
      <h2>Keys and gestures</h2>
      <div class="help-columns">
        {KEYS.map(([title, keys]) => (
          <section key={title}>
            <h3>{title}</h3>
            <dl>
              {keys.map(([key, meaning]) => (
                <div key={key}>
                  <dt>{key}</dt>
                  <dd>{meaning}</dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
      <h3>How to read it</h3>
      <p>
        The first lane is the time of a GPU: blue is busy, and the colour above its edge is what training did while the GPU had nothing to do.
        Hatched parts are estimates from profiler windows; grey is unexplained, and dots mean that nothing was sampled. In the lanes below, a line is the average of what a pixel covers; the band around it runs from the minimum to the maximum, so that no spike is
        lost. ▲ or ▼ at a lane's edge: values beyond its scale. Gaps: nothing was measured.
      </p>
      <button type="button" class="pill" onClick={() => app.state.set({ help: false })}>
        Close
      </button>
    </dialog>
  );
}
