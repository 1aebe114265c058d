//! What was measured, in one SQLite file that several machines' files can be merged into.

use std::path::{Path, PathBuf};
use std::time::Duration;

use passes::Tuning;
use passes::tuning::Engine;
use rusqlite::{Connection, OpenFlags, params};
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
const FORMAT: i64 = 1;

/// How long a process waits for another one that writes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file of measurements.
pub struct Database {
    connection: Connection,
    path: PathBuf,
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
        let found: i64 = connection
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(failed)?;
        if found == 0 && !flags.contains(OpenFlags::SQLITE_OPEN_READ_ONLY) {
            let made = connection.execute_batch(&format!(
                "BEGIN IMMEDIATE;
                 CREATE TABLE IF NOT EXISTS measurements (
                     product TEXT NOT NULL, mapping TEXT NOT NULL, measured_on TEXT NOT NULL, compiler TEXT NOT NULL,
                     micros REAL,
                     PRIMARY KEY (product, mapping, measured_on, compiler)
                 ) WITHOUT ROWID;
                 PRAGMA user_version = {FORMAT};
                 COMMIT;"
            ));
            made.map_err(failed)?;
        } else if found != FORMAT {
            return Err(DatabaseError::Format {
                path: path.into(),
                found,
            });
        }
        Ok(Database {
            connection,
            path: path.into(),
        })
    }

    fn failed(&self, source: rusqlite::Error) -> DatabaseError {
        DatabaseError::Sqlite {
            path: self.path.clone(),
            source,
        }
    }

    /// Keeps a measurement, in place of an earlier one of the same. It is in the file when this returns.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn keep(&self, row: &Row) -> Result<(), DatabaseError> {
        let Row {
            product,
            mapping,
            on,
            compiler,
            micros,
        } = row;
        let kept = self.connection.execute(
            "INSERT OR REPLACE INTO measurements VALUES (?1, ?2, ?3, ?4, ?5)",
            params![product, mapping, on, compiler, micros],
        );
        kept.map(|_| ()).map_err(|e| self.failed(e))
    }

    /// Lists all measurements, in the order of their keys.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn rows(&self) -> Result<Vec<Row>, DatabaseError> {
        let read = || -> Result<Vec<Row>, rusqlite::Error> {
            let mut statement = self.connection.prepare(
                "SELECT product, mapping, measured_on, compiler, micros FROM measurements
                 ORDER BY product, mapping, measured_on, compiler",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(Row {
                    product: row.get(0)?,
                    mapping: row.get(1)?,
                    on: row.get(2)?,
                    compiler: row.get(3)?,
                    micros: row.get(4)?,
                })
            })?;
            rows.collect()
        };
        read().map_err(|e| self.failed(e))
    }

    /// Takes the measurements of another file; of the same measurement, the faster is kept.
    ///
    /// # Errors
    /// A file that cannot be read or written.
    pub fn merge(&self, other: &Database) -> Result<usize, DatabaseError> {
        let rows = other.rows()?;
        let merge = || -> Result<usize, rusqlite::Error> {
            let transaction = self.connection.unchecked_transaction()?;
            let mut taken = 0;
            for row in &rows {
                taken += transaction.execute(
                    "INSERT INTO measurements VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO UPDATE SET micros = excluded.micros
                     WHERE excluded.micros IS NOT NULL AND (micros IS NULL OR excluded.micros < micros)",
                    params![row.product, row.mapping, row.on, row.compiler, row.micros],
                )?;
            }
            transaction.commit()?;
            Ok(taken)
        };
        merge().map_err(|e| self.failed(e))
    }

    /// Chooses the fastest mapping of each product, and of products of which a call was measured the faster of the two. What a device
    /// measured goes before what was predicted, and of equal times the row whose text is the first.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(product: &str, mapping: &str, on: &str, micros: impl Into<Option<f64>>) -> Row {
        Row {
            product: product.into(),
            mapping: mapping.into(),
            on: on.into(),
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
