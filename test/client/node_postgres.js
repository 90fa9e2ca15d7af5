// A client that no one here wrote: node-postgres, through a node that owns nothing. Prints "ok - ..." or "not ok - ...", one line a check.
const { Client } = require('pg');
const Cursor = (() => { try { return require('pg-cursor'); } catch (e) { return null; } })();
const copy = (() => { try { return require('pg-copy-streams'); } catch (e) { return null; } })();
const { pipeline } = require('stream/promises');
const { Readable, Writable } = require('stream');

let failed = 0;
function check(name, got, want) {
  const same = JSON.stringify(got) === JSON.stringify(want);
  if (!same) failed++;
  console.log(`${same ? 'ok' : 'not ok'} - ${name}` + (same ? '' : `: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`));
}

async function main() {
  const c = new Client({ connectionString: process.argv[2] });
  await c.connect();
  for (let i = 1; i <= 20; i++)
    await c.query('INSERT INTO people (id, name, born, tags, extra) VALUES ($1, $2, $3, $4, $5)',
      [i, 'name ' + i, '2000-01-' + String(i).padStart(2, '0'), ['a', String(i)], { n: i }]);
  let r = await c.query('SELECT name, tags, extra FROM people WHERE id = $1', [7]);
  check('parameterised select', r.rows, [{ name: 'name 7', tags: ['a', '7'], extra: { n: 7 } }]);
  for (let i = 1; i <= 12; i++) {
    r = await c.query({ name: 'by-id', text: 'SELECT id, name FROM people WHERE id = $1', values: [i] });
    if (r.rows.length !== 1 || r.rows[0].id !== i) check('named statement ' + i, r.rows, [{ id: i }]);
  }
  check('named statement, twelve times', r.rows, [{ id: 12, name: 'name 12' }]);
  r = await c.query('SELECT count(*)::int AS n, sum(id)::int AS s FROM people');
  check('aggregate over all shards', r.rows, [{ n: 20, s: 210 }]);
  await c.query('BEGIN');
  await c.query('UPDATE people SET name = $1 WHERE id = $2', ['changed', 1]);
  await c.query('UPDATE people SET name = $1 WHERE id = $2', ['changed', 2]);
  r = await c.query("SELECT id FROM people WHERE name = 'changed' ORDER BY id");
  check('own writes on two shards', r.rows, [{ id: 1 }, { id: 2 }]);
  await c.query('ROLLBACK');
  r = await c.query("SELECT count(*)::int AS n FROM people WHERE name = 'changed'");
  check('rolled back on both', r.rows, [{ n: 0 }]);
  await c.query('BEGIN');
  r = await c.query('UPDATE people SET name = name || $1 WHERE id IN ($2, $3) RETURNING id', ['!', 3, 4]);
  await c.query('COMMIT');
  check('rows updated', r.rowCount, 2);
  let code = null;
  try { await c.query('INSERT INTO people (id) VALUES ($1)', [5]); } catch (e) { code = e.code; }
  check('SQLSTATE of a remote error', code, '23505');
  if (Cursor) {
    const cursor = c.query(new Cursor('SELECT id FROM people ORDER BY id'));
    let rows = await cursor.read(8);
    check('cursor, first rows', rows.map(x => x.id), [1, 2, 3, 4, 5, 6, 7, 8]);
    rows = await cursor.read(100);
    check('cursor, the rest', rows.length, 12);
    await cursor.close();
  }
  if (copy) {
    await pipeline(Readable.from(['101\tcopied\n', '102\tcopied\n', '103\tcopied\n']), c.query(copy.from('COPY people (id, name) FROM STDIN')));
    r = await c.query("SELECT id FROM people WHERE name = 'copied' ORDER BY id");
    check('COPY FROM', r.rows.map(x => x.id), [101, 102, 103]);
    let text = '';
    await pipeline(c.query(copy.to("COPY (SELECT id FROM people WHERE name = 'copied' ORDER BY id) TO STDOUT")),
      new Writable({ write(chunk, enc, done) { text += chunk; done(); } }));
    check('COPY TO', text, '101\n102\n103\n');
  }
  r = await c.query('DELETE FROM people WHERE id > $1', [100]);
  check('rows deleted', r.rowCount, copy ? 3 : 0);
  if (process.argv[3]) {
    const other = new Client({ connectionString: process.argv[3] });
    await other.connect();
    const heard = [];
    const end = new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error('no notification came')), 60000).unref();
      c.on('notification', m => { heard.push([m.channel, m.payload]); if (m.payload === 'last') resolve(); });
    });
    await c.query('LISTEN news');
    await other.query('SELECT pg_notify($1, $2)', ['news', 'first']);
    await other.query('BEGIN');
    await other.query("NOTIFY news, 'second'");
    await other.query('COMMIT');
    await other.query("NOTIFY news, 'last'");
    await end;
    check('LISTEN through another node', heard, [['news', 'first'], ['news', 'second'], ['news', 'last']]);
    await c.query('SELECT pg_advisory_lock($1)', [77]);
    r = await other.query('SELECT pg_try_advisory_lock($1) AS got', [77]);
    check('an advisory lock of another node is held', r.rows, [{ got: false }]);
    await other.end();
  }
  await c.end();
  process.exit(failed ? 1 : 0);
}
main().catch(e => { console.log('not ok - ' + e.message); process.exit(1); });
