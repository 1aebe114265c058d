//! What was measured, in one SQLite file that several machines' files can be merged into.

use std::path::{Path, PathBuf};
use std::time::Duration;

use passes::Tuning;
use passes::tuning::Engine;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};
use serde::Serialize;

/// One measurement: a mapping of a product or a library's call for it, by one way of measuring.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// What the product is: [`passes::tuning::product`].
    pub product: String,
    /// The mapping, as kernels print it; or `call` and the name of a library's call.
    pub mapping: String,
    /// What measured it: a device's name, or `predicted` and the part whose time was predicted.
    pub on: String,
    /// The device's processor with its feature flags, as its driver has them. Empty of a prediction, and where it is
    /// not known.
    pub arch: String,
    /// The version of the device's driver. Empty of a prediction, and where it is not known.
    pub driver: String,
    /// Which compiler made the code; of a call, which version of its library and of the driver.
    pub compiler: String,
    /// Microseconds of one launch; `None` where the mapping could not be measured.
    pub micros: Option<f64>,
}

/// Says which files of measurements are refused.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("{}: {source}", path.display())]
    Sqlite { path: PathBuf, source: rusqlite::Error },
    #[error("{}: no such file; `graphc tune` makes it", path.display())]
    Missing { path: PathBuf },
    #[error("{}: measurements of format {found}, but this graphc reads format {FORMAT}", path.display())]
    Format { path: PathBuf, found: i64 },
}

/// The first word of what a prediction is said to be measured on.
pub const PREDICTED: &str = "predicted";

/// The format of the file.
const FORMAT: i64 = 2;

/// The format without processors and drivers. Such a file is read as it is, and becomes one of today's where it is
/// written. Its rows, whose processor and driver are not known, are chosen from like all others; a search measures what
/// they have again, and each such measurement takes the place of the row without.
const WITHOUT_DRIVERS: i64 = 1;

/// The table of [`FORMAT`].
const TABLE: &str = "CREATE TABLE IF NOT EXISTS measurements (
    product TEXT NOT NULL, mapping TEXT NOT NULL, measured_on TEXT NOT NULL, arch TEXT NOT NULL, driver TEXT NOT NULL,
    compiler TEXT NOT NULL, micros REAL,
    PRIMARY KEY (product, mapping, measured_on, arch, driver, compiler)
) WITHOUT ROWID;";

/// How long a process waits for another one that writes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file of measurements.
pub struct Database {
    connection: Connection,
    path: PathBuf,
    format: i64,
}

impl Database {
    /// Opens a file of measurements, or makes it.
    ///
    /// # Errors
    /// A file that cannot be made, is no such file, or is of another format.
    pub fn open(path: &Path) -> Result<Database, DatabaseError> {
        Database::with(path, OpenFlags::default())
    }

    /// Opens a file that must be there, to read it.
    ///
    /// # Errors
    /// As [`Database::open`]; no such file.
    pub fn read(path: &Path) -> Result<Database, DatabaseError> {
        if !path.exists() {
            return Err(DatabaseError::Missing { path: path.into() });
        }
        Database::with(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
    }

    fn with(path: &Path, flags: OpenFlags) -> Result<Database, DatabaseError> {
        let failed = |source| DatabaseError::Sqlite {
            path: path.into(),
            source,
        };
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        connection.busy_timeout(PATIENCE).map_err(failed)?;
        let format =
            |connection: &Connection| connection.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0));
        let mut found = format(&connection).map_err(failed)?;
        if (found == 0 || found == WITHOUT_DRIVERS) && !flags.contains(OpenFlags::SQLITE_OPEN_READ_ONLY) {
            let make = || -> Result<(), rusqlite::Error> {
                let transaction = Transaction::new_unchecked(&connection, TransactionBehavior::Immediate)?;
                // Another process may have done it since.
                match format(&transaction)? {
                    0 => transaction.execute_batch(TABLE)?,
                    WITHOUT_DRIVERS => {
                        transaction.execute_batch("ALTER TABLE measurements RENAME TO old;")?;
                        transaction.execute_batch(TABLE)?;
                        transaction.execute_batch(
                            "INSERT INTO measurements SELECT product, mapping, measured_on, '', '', compiler, micros FROM old;
                             DROP TABLE old;",
                        )?;
                    }
                    _ => return Ok(()),
                }
                transaction.pragma_update(None, "user_version", FORMAT)?;
                transaction.commit()
            };
            make().map_err(failed)?;
            found = format(&connection).map_err(failed)?;
        }
        if found != FORMAT && found != WITHOUT_DRIVERS {
            return Err(DatabaseError::Format {
                path: path.into(),
                found,
            });
        }
        Ok(Database {
            connection,
            path: path.into(),
            format: found,
        })
    }

    fn failed(&self, source: rusqlite::Error) -> DatabaseError {
        DatabaseError::Sqlite {
            path: self.path.clone(),
            source,
        }
    }

    /// Begins to write: from here on no other process does, so that what is read on the way stays so.
    fn begin(&self) -> Result<Transaction<'_>, rusqlite::Error> {
        Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)
    }

    /// Keeps a measurement, in place of an earlier one of the same, or of one whose processor and driver are not known.
    /// It is in the file when this returns.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn keep(&self, row: &Row) -> Result<(), DatabaseError> {
        let keep = || -> Result<(), rusqlite::Error> {
            let transaction = self.begin()?;
            replace_unknown(&transaction, row)?;
            insert(&transaction, row, "")?;
            transaction.commit()
        };
        keep().map_err(|e| self.failed(e))
    }

    /// Lists all measurements, in the order of their keys.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn rows(&self) -> Result<Vec<Row>, DatabaseError> {
        let read = || -> Result<Vec<Row>, rusqlite::Error> {
            let known = match self.format {
                WITHOUT_DRIVERS => "'' AS arch, '' AS driver",
                _ => "arch, driver",
            };
            let mut statement = self.connection.prepare(&format!(
                "SELECT product, mapping, measured_on, {known}, compiler, micros FROM measurements
                 ORDER BY product, mapping, measured_on, arch, driver, compiler",
            ))?;
            let rows = statement.query_map([], |row| {
                Ok(Row {
                    product: row.get(0)?,
                    mapping: row.get(1)?,
                    on: row.get(2)?,
                    arch: row.get(3)?,
                    driver: row.get(4)?,
                    compiler: row.get(5)?,
                    micros: row.get(6)?,
                })
            })?;
            rows.collect()
        };
        read().map_err(|e| self.failed(e))
    }

    /// Takes the measurements of another file; of the same measurement, the faster is kept. One whose processor and
    /// driver are not known is left out where there is one that says them.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn merge(&self, other: &Database) -> Result<usize, DatabaseError> {
        let rows = other.rows()?;
        let merge = || -> Result<usize, rusqlite::Error> {
            let transaction = self.begin()?;
            let mut taken = 0;
            for row in &rows {
                replace_unknown(&transaction, row)?;
                if is_known(&transaction, row)? {
                    continue;
                }
                taken += insert(
                    &transaction,
                    row,
                    "WHERE excluded.micros IS NOT NULL AND (micros IS NULL OR excluded.micros < micros)",
                )?;
            }
            transaction.commit()?;
            Ok(taken)
        };
        merge().map_err(|e| self.failed(e))
    }

    /// Chooses the fastest mapping of each product, and of products of which a call was measured the faster of the two.
    /// What a device measured goes before what was predicted, and of equal times the row whose text is the first.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn tuning(&self) -> Result<Tuning, DatabaseError> {
        let mut rows = self.rows()?;
        rows.retain(|row| row.micros.is_some_and(f64::is_finite));
        let predicted = |row: &Row| row.on.starts_with(PREDICTED);
        // The best of a product comes last, and stays.
        rows.sort_by(|a, b| {
            let (slow, fast) = (b.micros.unwrap_or(f64::MAX), a.micros.unwrap_or(f64::MAX));
            let by_time = slow.total_cmp(&fast).then_with(|| b.mapping.cmp(&a.mapping));
            predicted(b).cmp(&predicted(a)).then(by_time)
        });
        let is_call = |row: &Row| Engine::of_row(&row.mapping) != Engine::Kernel;
        let (calls, kernels): (Vec<Row>, Vec<Row>) = rows.iter().cloned().partition(is_call);
        let mut tuning: Tuning = kernels.into_iter().map(|row| (row.product, row.mapping)).collect();
        for call in calls {
            let of_call = |row: &&Row| row.product == call.product;
            // One with a kernel to compare with: what is not measured is not slower.
            let kernel = |row: &Row| row.product == call.product && !is_call(row) && predicted(row) == predicted(&call);
            let best = rows.iter().rfind(of_call);
            if let Some(best) = best.filter(|_| rows.iter().any(kernel)) {
                tuning.decide(call.product.clone(), Engine::of_row(&best.mapping));
            }
        }
        Ok(tuning)
    }
}

impl Row {
    /// Whether the row does not say by which processor and driver it was measured, though a device did.
    fn is_unknown(&self) -> bool {
        self.arch.is_empty() && self.driver.is_empty() && !self.on.starts_with(PREDICTED)
    }
}

/// Adds a measurement, or puts its time in place of that of the same one where the condition holds; returns how many
/// rows changed.
fn insert(connection: &Connection, row: &Row, condition: &str) -> Result<usize, rusqlite::Error> {
    connection.execute(
        &format!(
            "INSERT INTO measurements VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT DO UPDATE SET micros = excluded.micros {condition}"
        ),
        params![
            row.product,
            row.mapping,
            row.on,
            row.arch,
            row.driver,
            row.compiler,
            row.micros
        ],
    )
}

/// Removes the measurement whose processor and driver are not known, where `row` is the same and says them.
fn replace_unknown(connection: &Connection, row: &Row) -> Result<(), rusqlite::Error> {
    if !row.is_unknown() && !row.on.starts_with(PREDICTED) {
        connection.execute(
            "DELETE FROM measurements WHERE product = ?1 AND mapping = ?2 AND measured_on = ?3 AND compiler = ?4
             AND arch = '' AND driver = ''",
            params![row.product, row.mapping, row.on, row.compiler],
        )?;
    }
    Ok(())
}

/// Whether `row` does not say its processor and driver, and the same measurement is there with them.
fn is_known(connection: &Connection, row: &Row) -> Result<bool, rusqlite::Error> {
    if !row.is_unknown() {
        return Ok(false);
    }
    connection.query_row(
        "SELECT EXISTS (SELECT 1 FROM measurements WHERE product = ?1 AND mapping = ?2 AND measured_on = ?3 AND compiler = ?4
         AND (arch <> '' OR driver <> ''))",
        params![row.product, row.mapping, row.on, row.compiler],
        |row| row.get(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(product: &str, mapping: &str, on: &str, micros: impl Into<Option<f64>>) -> Row {
        Row {
            product: product.into(),
            mapping: mapping.into(),
            on: on.into(),
            arch: String::new(),
            driver: String::new(),
            compiler: "c".into(),
            micros: micros.into(),
        }
    }

    #[test]
    fn the_fastest_measured_mapping_is_chosen() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::open(&folder.path().join("a.db")).expect("opens");
        for row in [
            row("p", "slow", "MI210", 3.0),
            row("p", "fast", "MI210", 2.0),
            row("p", "also fast", "MI210", 2.0),
            // A prediction, however good, is no measurement.
            row("p", "dreamt", "predicted MI210", 1.0),
            row("q", "dreamt", "predicted MI210", 1.0),
            row("q", "broken", "MI210", None),
        ] {
            database.keep(&row).expect("keeps");
        }
        let tuning = database.tuning().expect("reads");
        let chosen: Vec<_> = tuning.rows().collect();
        assert_eq!(chosen, [("p", "also fast"), ("q", "dreamt")]);
    }

    #[test]
    fn files_merge_and_keep_the_faster() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let (a, b) = (
            Database::open(&at("a.db")).expect("opens"),
            Database::open(&at("b.db")).expect("opens"),
        );
        for (database, micros) in [(&a, 3.0), (&b, 2.0)] {
            database.keep(&row("p", "m", "MI210", micros)).expect("keeps");
        }
        a.keep(&row("q", "m", "MI210", 1.0)).expect("keeps");
        b.keep(&row("q", "m", "MI210", 5.0)).expect("keeps");
        b.keep(&row("r", "m", "MI210", None)).expect("keeps");
        assert_eq!(a.merge(&b).expect("merges"), 2);
        let rows: Vec<_> = a
            .rows()
            .expect("reads")
            .into_iter()
            .map(|r| (r.product, r.micros))
            .collect();
        assert_eq!(
            rows,
            [("p".into(), Some(2.0)), ("q".into(), Some(1.0)), ("r".into(), None)]
        );
        // Again nothing is new.
        assert_eq!(a.merge(&b).expect("merges"), 0);
    }

    fn by(row: Row, arch: &str, driver: &str) -> Row {
        Row {
            arch: arch.into(),
            driver: driver.into(),
            ..row
        }
    }

    #[test]
    fn processors_and_drivers_have_rows_of_their_own() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::open(&folder.path().join("a.db")).expect("opens");
        let rows = [
            by(row("p", "m", "MI210", 3.0), "gfx90a:xnack+", "HIP 7.1.0"),
            by(row("p", "m", "MI210", 2.0), "gfx90a:xnack-", "HIP 7.1.0"),
            by(row("p", "m", "MI210", 1.0), "gfx90a:xnack-", "HIP 7.2.0"),
        ];
        for row in rows.iter().chain(&rows) {
            database.keep(row).expect("keeps");
        }
        assert_eq!(database.rows().expect("reads"), rows);
    }

    /// A file as it was before processors and drivers stood in it.
    fn old(path: &Path) {
        let made = Connection::open(path).expect("opens").execute_batch(
            "CREATE TABLE measurements (
                 product TEXT NOT NULL, mapping TEXT NOT NULL, measured_on TEXT NOT NULL, compiler TEXT NOT NULL, micros REAL,
                 PRIMARY KEY (product, mapping, measured_on, compiler)
             ) WITHOUT ROWID;
             INSERT INTO measurements VALUES
                 ('p', 'fast', 'MI210', 'c', 1.0), ('p', 'slow', 'MI210', 'c', 2.0), ('p', 'm', 'predicted gfx90a', 'c', 3.0);
             PRAGMA user_version = 1;",
        );
        made.expect("is made");
    }

    #[test]
    fn files_without_drivers_are_read_and_become_files_with_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        old(&at("old.db"));
        let had = [
            row("p", "fast", "MI210", 1.0),
            row("p", "m", "predicted gfx90a", 3.0),
            row("p", "slow", "MI210", 2.0),
        ];
        // Read as it is, and left so.
        let before = std::fs::read(at("old.db")).expect("reads");
        let reader = Database::read(&at("old.db")).expect("opens");
        assert_eq!(reader.rows().expect("reads"), had);
        let tuning = reader.tuning().expect("reads");
        assert_eq!(tuning.get("p"), Some("fast"));
        assert_eq!(std::fs::read(at("old.db")).expect("reads"), before);
        drop(reader);
        // Written, it is of today's format, with all that it had.
        let database = Database::open(&at("old.db")).expect("opens");
        assert_eq!(database.rows().expect("reads"), had);
        let known = by(row("p", "fast", "MI210", 4.0), "gfx90a:xnack-", "HIP 7.2.0");
        database.keep(&known).expect("keeps");
        let now = [known.clone(), had[1].clone(), had[2].clone()];
        assert_eq!(
            database.rows().expect("reads"),
            now,
            "what is known takes the place of what was not"
        );
        assert_eq!(database.tuning().expect("reads").get("p"), Some("slow"));
        drop(database);
        assert_eq!(
            Database::read(&at("old.db")).expect("opens").rows().expect("reads"),
            now
        );
        // An old file merged into one that knows, and the other way round.
        old(&at("other.db"));
        let both = Database::open(&at("both.db")).expect("opens");
        both.keep(&known).expect("keeps");
        let other = Database::read(&at("other.db")).expect("opens");
        assert_eq!(both.merge(&other).expect("merges"), 2);
        assert_eq!(both.rows().expect("reads"), now);
        drop(other);
        let other = Database::open(&at("other.db")).expect("opens");
        assert_eq!(other.merge(&both).expect("merges"), 1);
        assert_eq!(other.rows().expect("reads"), now);
    }

    /// Several that open an old file at once: one of them makes it a file of today, and nothing is lost.
    #[test]
    fn an_old_file_is_opened_by_many() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("old.db");
        old(&path);
        std::thread::scope(|scope| {
            let opened: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| Database::open(&path).expect("opens").rows().expect("reads")))
                .collect();
            for rows in opened {
                assert_eq!(rows.join().expect("ends").len(), 3);
            }
        });
    }

    #[test]
    fn files_that_are_none_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let text = |path: &Path| Database::read(path).err().expect("is refused").to_string();
        assert!(text(&at("none.db")).contains("no such file"));
        std::fs::write(
            at("text"),
            "not a database, but long enough to be looked at as one by its first bytes",
        )
        .expect("writes");
        assert!(text(&at("text")).contains("not a database"), "{}", text(&at("text")));
        Connection::open(at("new.db"))
            .expect("opens")
            .execute_batch("PRAGMA user_version = 7")
            .expect("writes");
        assert!(text(&at("new.db")).contains("format 7"));
    }
}
