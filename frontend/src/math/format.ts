/** Numbers as people read them. Unknown values print as an en dash, never as 0. */

export const UNKNOWN = '–';

const known = (value: number | null | undefined): value is number =>
  typeof value === 'number' && Number.isFinite(value);

/** 6400 -> "6,400", the same in every locale. */
export function count(value: number | null | undefined): string {
  if (!known(value)) return UNKNOWN;
  const [whole = '0', fraction] = String(Math.round(value * 100) / 100).split('.');
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ',');
  return fraction ? `${grouped}.${fraction}` : grouped;
}

/** About three significant digits: 1234 -> "1,234", 12.34 -> "12.3", 0.01234 -> "0.0123". */
export function short(value: number | null | undefined): string {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(2);
  if (size >= 99.95) return count(Math.round(value));
  if (size < 1e-4) return value.toExponential(1);
  const digits = Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(size))));
  return String(Number(value.toFixed(digits)));
}

/** 340.2 -> "5 m 40 s", 4.56 -> "4.56 s", 0.0042 -> "4.2 ms". */
export function seconds(value: number | null | undefined): string {
  if (!known(value)) return UNKNOWN;
  if (value < 0) return `−${seconds(-value)}`;
  if (value === 0) return '0 s';
  if (value < 0.9995e-6) return `${short(value * 1e9)} ns`;
  if (value < 0.9995e-3) return `${short(value * 1e6)} µs`;
  if (value < 0.9995) return `${short(value * 1e3)} ms`;
  if (value < 59.95) return `${short(value)} s`;
  if (value < 99.5) return `${Math.round(value)} s`; // as the verdict says it
  const whole = Math.round(value);
  const pad = (n: number): string => String(n).padStart(2, '0');
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${pad(whole % 60)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} m`;
  const hours = Math.round(value / 3600);
  return `${Math.floor(hours / 24)} d ${pad(hours % 24)} h`;
}

/** What a thing took or cost in all, in the figures of verdict and terminal: 3.24 -> "3.2 s", 30.6 -> "31 s", 3659 -> "1 h 00 m". */
export function duration(value: number | null | undefined): string {
  if (!known(value)) return UNKNOWN;
  if (value < 0.9995) return `${value >= 0.00995 ? Math.round(value * 1e3) : Number((value * 1e3).toPrecision(2))} ms`;
  if (value < 99.5) return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} s`;
  const whole = Math.round(value);
  return whole < 3600 ? seconds(whole) : `${Math.floor(whole / 3600)} h ${String(Math.floor(whole / 60) % 60).padStart(2, '0')} m`;
}

/** Hours as the terminal writes them: 1234 -> "1,234 h", 12.34 -> "12.3 h"; less than ten as a duration. */
export function hoursText(value: number | null | undefined): string {
  if (!known(value)) return UNKNOWN;
  if (value >= 99.5) return `${count(Math.round(value))} h`;
  if (value >= 9.95) return `${value.toFixed(1)} h`;
  return value > 0 ? duration(3600 * value) : '0 s';
}

/** 1, "step" -> "1 step"; 6400, "step" -> "6,400 steps". */
export const plural = (value: number, noun: string): string => `${count(value)} ${noun}${value === 1 ? '' : 's'}`;

/** "1st", "2nd", "3rd", "4th", "11th". */
export function ordinal(value: number): string {
  const ending = /1\d$/.test(String(value)) ? 'th' : (['th', 'st', 'nd', 'rd'][value % 10] ?? 'th');
  return `${count(value)}${ending}`;
}

export const nanoseconds = (value: number | null | undefined): string => seconds(known(value) ? value / 1e9 : null);

/** Position on the time axis: "5:03", "1:05:03", with as many decimals as `resolution` needs. */
export function elapsed(ns: number, resolution = 1e9): string {
  if (!known(ns)) return UNKNOWN;
  const sign = ns < 0 ? '−' : '';
  const decimals = resolution >= 1e9 ? 0 : Math.min(9, Math.ceil(9 - Math.log10(resolution) - 1e-9));
  const unit = 10 ** decimals;
  const ticks = Math.round((Math.abs(ns) / 1e9) * unit);
  const whole = Math.floor(ticks / unit);
  const fraction = decimals ? `.${String(ticks % unit).padStart(decimals, '0')}` : '';
  const pad = (n: number): string => String(n).padStart(2, '0');
  const minutes = Math.floor(whole / 60);
  return minutes < 60
    ? `${sign}${minutes}:${pad(whole % 60)}${fraction}`
    : `${sign}${Math.floor(minutes / 60)}:${pad(minutes % 60)}:${pad(whole % 60)}${fraction}`;
}

/** Local wall-clock time of day at `epochNs`; the date too when `resolution` is a day or more. */
export function clock(epochNs: number, resolution = 1e9): string {
  if (!known(epochNs)) return UNKNOWN;
  const date = new Date(epochNs / 1e6);
  const pad = (n: number): string => String(n).padStart(2, '0');
  if (resolution >= 86400e9) return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  const minutes = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  if (resolution >= 60e9) return minutes;
  if (resolution >= 1e9) return `${minutes}:${pad(date.getSeconds())}`;
  const decimals = Math.min(6, Math.ceil(9 - Math.log10(resolution) - 1e-9));
  const fraction = Math.floor(((epochNs / 1e9) % 1) * 10 ** decimals);
  return `${minutes}:${pad(date.getSeconds())}.${String(fraction).padStart(decimals, '0')}`;
}

/** A tick of the clock's axis: midnight is where the date changes, and says to which. */
export function clockTick(epochNs: number, resolution: number): string {
  const text = clock(epochNs, resolution);
  return text === '00:00' ? clock(epochNs, 86400e9) : text;
}

/** "2026-11-29 14:05", local; from nanoseconds since the epoch. */
export function date(epochNs: number | null | undefined): string {
  if (!known(epochNs)) return UNKNOWN;
  const day = clock(epochNs, 86400e9);
  return `${day} ${clock(epochNs, 60e9)}`;
}

const BINARY = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** 34.1 GiB; the unit is the one that fits `of` when given, so that two values share it. */
export function bytes(value: number | null | undefined, of?: number | null): string {
  if (!known(value)) return UNKNOWN;
  const reference = Math.abs(known(of) ? of : value);
  const power = reference < 1 ? 0 : Math.min(BINARY.length - 1, Math.floor(Math.log2(reference) / 10));
  return `${short(value / 1024 ** power)} ${BINARY[power]}`;
}

/** "2.1 kWh", "340 Wh", "820 J". */
export function energy(joules: number): string {
  const [size, unit] = ([[3.6e6, 'kWh'], [3.6e3, 'Wh']] as const).find(([one]) => joules >= 0.1 * one) ?? [1, 'J'];
  return `${short(Number((joules / size).toPrecision(3)))} ${unit}`;
}

export const percent = (value: number | null | undefined): string =>
  known(value) ? `${value !== 0 && Math.abs(value) < 9.95 ? Number(value.toFixed(1)) : Math.round(value)} %` : UNKNOWN;

/** A factor of at most so much: two digits, for it is an upper bound. 3.97 -> "4×". */
export const times = (value: number | null | undefined): string => (known(value) ? `${Number(value.toPrecision(2))}×` : UNKNOWN);

/** The least and the most that something gains or saves; the most is null where it has no upper end. */
export type Bounds = readonly [number | null, number | null];

/** How many times faster a run of `wall` seconds gets: [1, 2] of 3 -> "1.5 to 3×", [2, null] -> "at least 3×"; empty where that is little. */
export function gain(wall: number | null | undefined, saved: Bounds | null | undefined): string {
  if (!known(wall) || !saved || wall <= 0) return '';
  const factor = (seconds: number): number => wall / Math.max(1e-9, wall - Math.min(seconds, 0.999 * wall));
  return factorsText([factor(saved[0] ?? 0), saved[1] === null ? null : factor(saved[1])]);
}

/** Two printed values and what stands between them: "5 ms – 8 ms"; one of them where both print alike. */
export const between = (low: string, high: string, sign: string): string => (low === high ? low : `${low}${sign}${high}`);

/** A gain between two factors: "1.5 to 3×", "up to 3×", "at least 3×"; empty where that is little. */
export function factorsText([low, most]: Bounds): string {
  const least = low ?? 1;
  if (most === null) return least < WORTH_A_WORD ? '' : `at least ${times(least)}`;
  if (most < WORTH_A_WORD) return '';
  if (least < WORTH_A_WORD) return `up to ${times(most)}`;
  return times(least) === times(most) ? times(most) : `${times(least).slice(0, -1)} to ${times(most)}`;
}

/** A gain of less is not worth printing. */
export const WORTH_A_WORD = 1.05;

export const share = (part: number | null | undefined, whole: number | null | undefined): string =>
  known(part) && known(whole) && whole > 0 ? percent((100 * part) / whole) : UNKNOWN;

export interface Scale {
  /** The unit all values of the scale are written in, e.g. "GiB"; empty where there is none. */
  unit: string;
  /** A value without its unit, e.g. "33.5". */
  number: (value: number | null | undefined) => string;
}

/** How values of a lane are written beside each other: in the unit that fits its `top`. */
export function scaleOf(top: number, unit: string): Scale {
  const by = (divisor: number, name: string): Scale => ({ unit: name, number: (value) => short(known(value) ? value / divisor : null) });
  switch (unit) {
    case '%':
      return { unit, number: (value) => percent(value).replace(/ %$/, '') };
    case 'bytes':
    case 'bytes/s': {
      const power = top < 1 ? 0 : Math.min(BINARY.length - 1, Math.floor(Math.log2(top) / 10));
      return by(1024 ** power, `${BINARY[power]}${unit.slice(5)}`);
    }
    case 'ns':
    case 'ms': {
      const ns = NANOSECONDS[unit];
      const fit = ([[1e9, 's'], [1e6, 'ms'], [1e3, 'µs']] as const).find(([size]) => top * ns >= size) ?? [1, 'ns'];
      return by(fit[0] / ns, fit[1]);
    }
    case 'mW':
      return by(1e3, 'W');
    default:
      return by(1, unit);
  }
}

const NANOSECONDS = { ns: 1, ms: 1e6 };

/** A value of a lane with its unit, e.g. (12, "%") -> "12 %", (3.6e10, "bytes") -> "33.5 GiB". */
export function withUnit(value: number | null | undefined, unit: string): string {
  if (!known(value)) return UNKNOWN;
  if (unit === 'ns' || unit === 'ms') return nanoseconds(value * NANOSECONDS[unit]);
  const scale = scaleOf(Math.abs(value), unit);
  return [scale.number(value), scale.unit].filter(Boolean).join(' ');
}
