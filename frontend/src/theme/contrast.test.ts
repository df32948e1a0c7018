import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

const css = readFileSync(join(process.cwd(), 'src', 'style.css'), 'utf8');

function theme(selector: string): Map<string, string> {
  const from = css.indexOf(`\n${selector} {`);
  const block = css.slice(from, css.indexOf('}', from));
  return new Map([...block.matchAll(/--([\w-]+):\s*(#[0-9a-f]{6})/g)].map((match) => [match[1] as string, match[2] as string]));
}

function luminance(hex: string): number {
  const channel = (at: number): number => {
    const value = parseInt(hex.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
}

function contrast(a: string, b: string): number {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x) as [number, number];
  return (light + 0.05) / (dark + 0.05);
}

const light = theme(':root');
const dark = new Map([...light, ...theme(':root.dark')]);

for (const [name, colours] of [['light', light], ['dark', dark]] as const) {
  const get = (key: string): string => colours.get(key) ?? assert.fail(`no --${key}`);
  test(`${name}: text holds 4.5 to 1 on everything it stands on`, () => {
    for (const text of ['text', 'muted'])
      for (const ground of ['bg', 'panel', 'stripe']) assert.ok(contrast(get(text), get(ground)) >= 4.5, `${text} on ${ground}`);
    for (const text of ['good', 'bad', 'accent']) assert.ok(contrast(get(text), get('bg')) >= 4.5, text);
    assert.ok(contrast(get('inverse'), get('on-inverse')) >= 4.5);
  });
  test(`${name}: lines of lanes hold 2 to 1 on the ground, those of causes 3 to 1 but for amber`, () => {
    for (const hue of ['blue', 'amber', 'orange', 'rust', 'olive', 'mauve', 'violet', 'teal', 'red', 'slate'])
      assert.ok(contrast(get(hue), get('bg')) >= (hue === 'amber' ? 2 : 3), `${hue} ${contrast(get(hue), get('bg'))}`);
  });
}
