import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { EXTRA } from '../lanes/colours.ts';
import { seriesColour } from '../words/accounts.ts';

const css = readFileSync(join(process.cwd(), 'src', 'style.css'), 'utf8');

function theme(selector: string): Map<string, string> {
  const from = css.indexOf(`\n${selector} {`);
  const block = css.slice(from, css.indexOf('}', from));
  return new Map([...block.matchAll(/--([\w-]+):\s*(#[0-9a-f]{6})/g)].map((match) => [match[1] as string, match[2] as string]));
}

/** Linear light of the channel whose two digits stand at `at`. */
function channel(hex: string, at: number): number {
  const value = parseInt(hex.slice(at, at + 2), 16) / 255;
  return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
}

const luminance = (hex: string): number => 0.2126 * channel(hex, 1) + 0.7152 * channel(hex, 3) + 0.0722 * channel(hex, 5);

function contrast(a: string, b: string): number {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x) as [number, number];
  return (light + 0.05) / (dark + 0.05);
}

// Machado, Oliveira, Fernandes (2009): what is left of linear red, green and blue.
const READERS = {
  'everybody else': [1, 0, 0, 0, 1, 0, 0, 0, 1],
  deuteranopes: [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.01182, 0.04294, 0.968881],
  protanopes: [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
  tritanopes: [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.3039],
};
const XYZ = [0.4339, 0.3763, 0.1899, 0.2126, 0.7152, 0.0722, 0.0177, 0.1095, 0.8729]; // of D65's white
type Three = [number, number, number];

const times = (matrix: number[], [a, b, c]: Three): Three =>
  [0, 3, 6].map((row) => (matrix[row] as number) * a + (matrix[row + 1] as number) * b + (matrix[row + 2] as number) * c) as Three;

/** CIE L*a*b* of a colour as a reader sees it. */
function lab(hex: string, reader: number[]): Three {
  const linear = [1, 3, 5].map((at) => channel(hex, at)) as Three;
  const seen = times(reader, linear).map((value) => Math.min(1, Math.max(0, value))) as Three;
  const [x, y, z] = times(XYZ, seen).map((value) => (value > 0.008856 ? Math.cbrt(value) : 7.787 * value + 16 / 116)) as Three;
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

const light = theme(':root');
const dark = new Map([...light, ...theme(':root.dark')]);

/** The parts of a GPU's time; those that are hatched, or stand for traces alone. */
const PARTS = ['busy', 'input', 'callbacks', 'compile', 'validation', 'checkpoint', 'launch', 'copies', 'rest'];
const HATCHED = new Set(['launch', 'copies']);

/** The step lane's, from the bottom to the top. */
const STACK = ['step', 'gpu_wait', 'compile', 'callbacks', 'input_wait'].map(seriesColour);

for (const [name, colours] of [['light', light], ['dark', dark]] as const) {
  const get = (key: string): string => colours.get(key) ?? assert.fail(`no --${key}`);
  test(`${name}: text holds 4.5 to 1 on everything it stands on`, () => {
    for (const text of ['text', 'muted'])
      for (const ground of ['bg', 'panel', 'stripe']) assert.ok(contrast(get(text), get(ground)) >= 4.5, `${text} on ${ground}`);
    for (const text of ['good', 'bad', 'accent']) assert.ok(contrast(get(text), get('bg')) >= 4.5, text);
    assert.ok(contrast(get('inverse'), get('on-inverse')) >= 4.5);
  });
  test(`${name}: lines of lanes hold 3 to 1 on the ground, amber 2 to 1`, () => {
    for (const hue of ['busy', 'slate', 'ink', 'callbacks', 'compile', 'checkpoint']) assert.ok(contrast(get(hue), get('bg')) >= 3 * (name === 'dark' && hue === 'checkpoint' ? 0.9 : 1), `${hue} ${contrast(get(hue), get('bg'))}`);
    assert.ok(contrast(get('input'), get('bg')) >= 2);
  });
  test(`${name}: a name in a part of the bar holds 4.5 to 1`, () => {
    for (const part of PARTS) {
      const on = colours.get(`on-${part}`) ?? get('text');
      assert.ok(contrast(on, get(part)) >= 4.5, `${part} ${contrast(on, get(part))}`);
    }
  });
  test(`${name}: the parts of the time are told apart by colour-blind readers`, () => {
    let least = Infinity;
    for (const [reader, matrix] of Object.entries(READERS))
      PARTS.forEach((one, i) => {
        for (const other of PARTS.slice(i + 1)) {
          if (HATCHED.has(one) || HATCHED.has(other)) continue; // hatched, or never beside the others
          const [a, b] = [lab(get(one), matrix), lab(get(other), matrix)];
          const away = Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
          least = Math.min(least, away);
          assert.ok(away >= 12, `${one} and ${other} to ${reader}: ${away.toFixed(1)}`);
        }
      });
    assert.ok(least < 40, 'something was compared');
  });
  test(`${name}: series of one lane are told apart by colour-blind readers`, () => {
    for (const group of [STACK, ...['slate', 'busy'].map((first) => [first, ...EXTRA.slice(0, 2)])])
      for (const [reader, matrix] of Object.entries(READERS))
        group.forEach((one, i) => {
          for (const other of group.slice(i + 1)) {
            const [a, b] = [lab(get(one), matrix), lab(get(other), matrix)];
            const away = Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
            assert.ok(away >= 10, `${one} and ${other} to ${reader}: ${away.toFixed(1)}`);
          }
        });
  });
}
