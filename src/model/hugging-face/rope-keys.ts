/**
 * The rotation in `config.json`, in both of its spellings: `rope_parameters`, or `rope_theta` beside `rope_scaling`; under
 * GGUF's names for the same numbers.
 */

import { CorruptFileError } from '../../errors.ts';
import type { ConfigKeys } from './config-reader.ts';

/** Of each kind of scaling: GGUF's key, and the name in the object. */
const scalings: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  linear: { 'rope.scaling.factor': 'factor' },
  llama3: {
    'rope.scaling.factor': 'factor',
    'rope.scaling.original_context_length': 'original_max_position_embeddings',
    'rope.scaling.low_freq_factor': 'low_freq_factor',
    'rope.scaling.high_freq_factor': 'high_freq_factor',
  },
  yarn: {
    'rope.scaling.factor': 'factor',
    'rope.scaling.original_context_length': 'original_max_position_embeddings',
    'rope.scaling.yarn_beta_fast': 'beta_fast',
    'rope.scaling.yarn_beta_slow': 'beta_slow',
    'config.attention_factor': 'attention_factor',
    'config.truncate': 'truncate',
  },
};

/** @throws CorruptFileError `corrupt_file` for a rotation that is said twice and differently */
export function addRope(keys: ConfigKeys): void {
  const [said, scaling] = (['rope_parameters', 'rope_scaling'] as const).map((name) => {
    const value = keys.value(name);
    if (value === undefined) keys.take(name);
    else if (typeof value !== 'object' || Array.isArray(value)) {
      throw keys.corrupt(name, JSON.stringify(value).slice(0, 60), 'an object that describes the rotation');
    }
    return value === undefined ? undefined : name;
  });
  if (said !== undefined && scaling !== undefined) {
    throw new CorruptFileError(
      `${keys.where}: config.json has both rope_parameters and rope_scaling; expected one of them, since they describe the same`,
      { data: { key: scaling } },
    );
  }
  const at = said ?? scaling;
  const inside = (name: string) => (at === undefined ? [] : [`${at}.${name}`]);
  keys.add('rope.freq_base', [...inside('rope_theta'), 'rope_theta']);
  addDimensions(keys, [...inside('partial_rotary_factor'), 'partial_rotary_factor']);
  // Older writers call it `type`.
  const kind = (at && (keys.take(`${at}.rope_type`) ?? keys.take(`${at}.type`))) ?? 'default';
  if (at !== undefined) for (const name of ['rope_type', 'type']) keys.take(`${at}.${name}`);
  if (kind === 'default') return;
  const spelled = keys.value(`${at}.rope_type`) === undefined ? `${at}.type` : `${at}.rope_type`;
  keys.set('rope.scaling.type', kind, spelled);
  for (const [key, name] of Object.entries(scalings[`${kind}`] ?? {})) keys.add(key, inside(name));
}

/** GGUF has the number of rotated elements, `config.json` their share of a head. */
function addDimensions(keys: ConfigKeys, spelled: readonly string[]): void {
  keys.add('rope.dimension_count', spelled);
  const name = spelled.find((each) => keys.value(each) !== undefined);
  const share = name === undefined ? undefined : keys.value(name);
  const [head, hidden, heads] = ['head_dim', 'hidden_size', 'num_attention_heads'].map((each) => keys.value(each));
  const width = head ?? (typeof hidden === 'number' && typeof heads === 'number' ? hidden / heads : undefined);
  if (name !== undefined && typeof share === 'number' && typeof width === 'number') {
    keys.set('rope.dimension_count', Math.floor(width * share), name);
  }
}
