/** Colours for the canvas, read from the stylesheet so that one place defines them. */

/** The parts of a GPU's time, and the neutral tones of everything that is none. */
export const HUES = ['busy', 'sky', 'copies', 'launch', 'input', 'callbacks', 'compile', 'validation', 'checkpoint', 'rest', 'slate', 'steel', 'grey', 'ink'] as const;

const ROLES = ['bg', 'text', 'muted', 'line', 'strong-line', 'accent', 'inverse', 'on-inverse', 'stripe'] as const;

export interface Palette {
  /** A hue by name; unknown names are grey. */
  hue(name: string): string;
  bg: string;
  text: string;
  muted: string;
  line: string;
  strongLine: string;
  accent: string;
  inverse: string;
  onInverse: string;
  stripe: string;
  font: string;
  /** How strong the grid is: where the system chooses the colours, its line is as strong as text. */
  grid: number;
  dark: boolean;
}

/** The colours that the stylesheet gives an element now, in its light or dark theme. */
export function readPalette(element: Element): Palette {
  const style = getComputedStyle(element);
  const read = (name: string): string => style.getPropertyValue(`--${name}`).trim() || '#888';
  const hues = new Map<string, string>(HUES.map((hue) => [hue, read(hue)]));
  const [bg, text, muted, line, strongLine, accent, inverse, onInverse, stripe] = ROLES.map(read) as [
    string, string, string, string, string, string, string, string, string,
  ];
  return {
    hue: (name) => hues.get(name) ?? (hues.get('grey') as string),
    bg, text, muted, line, strongLine, accent, inverse, onInverse, stripe,
    grid: matchMedia('(forced-colors: active)').matches ? 0.25 : 0.6,
    font: style.getPropertyValue('--font').trim() || 'system-ui, sans-serif',
    dark: element.classList.contains('dark'),
  };
}
