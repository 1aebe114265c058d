//! `graphc tune`, and `--tuning` of the verbs that compile.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use graphc::tune::Database;

use crate::place::{Place, compiler, text};

/// Three products with a choice of tilings: two differ in what follows them. The result of one is read from outside, so
/// that it is no part of another's kernel.
const PRODUCTS: &str = "graph @products stage=import {
  x = input \"x\" : f16[48, 64]
  u = input \"u\" : f16[64, 96]
  v = input \"v\" : f16[64, 96]
  w = input \"w\" : f16[96, 40]
  a = contract x, u
  b = contract x, v
  c = add a, b
  d = contract c, w
  return c as \"c\"
  return d as \"d\"
}
";

fn tuning<'a>(model: &'a str, database: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args = [
        "tune",
        "run",
        model,
        "--emulate",
        "--target",
        "gfx90a",
        "--no-libraries",
        "--format",
        "json",
        "--database",
        database,
    ];
    [&args, more].concat()
}

#[test]
fn tuning_measures_each_candidate_once_and_the_best_is_taken() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let (model, file) = (p.write("products.gir", PRODUCTS), p.path("tuned.db"));
    let (model, file) = (text(&model), text(&file));

    // Without time nothing is measured, and the file is there to go on with.
    let none = p.json(&tuning(
        model,
        file,
        &["--candidates", "3", "--budget", "0", "--threads", "2"],
    ));
    assert_eq!(
        (&none["measured"], none["left"].as_u64()),
        (&0.into(), Some(9)),
        "{none:#}"
    );

    let first = p.json(&tuning(model, file, &["--candidates", "3"]));
    assert_eq!(
        (&first["measured"], &first["left"]),
        (&9.into(), &0.into()),
        "{first:#}"
    );
    let products = first["products"].as_array().expect("a list");
    assert_eq!(products.len(), 3, "{first:#}");
    for product in products {
        let (predicted, best) = (&product["predicted"]["us"], &product["best"]["us"]);
        assert!(
            best.as_f64() > Some(0.0) && best.as_f64() <= predicted.as_f64(),
            "{product:#}"
        );
    }
    let again = p.json(&tuning(model, file, &["--candidates", "3"]));
    assert_eq!(
        (&again["measured"], &again["products"]),
        (&0.into(), &first["products"])
    );
    let more = p.json(&tuning(model, file, &["--candidates", "4"]));
    assert_eq!(more["measured"], 3, "{more:#}");

    // What was found is taken, said, and the same in two processes.
    let plan = [
        "explain",
        model,
        "--target",
        "gfx90a",
        "--no-libraries",
        "--tuning",
        file,
    ];
    let explained = p.ok(&plan);
    assert!(explained.contains("tiling was measured, not predicted"), "{explained}");
    assert_eq!(explained, p.ok(&plan));
    for product in more["products"].as_array().expect("a list") {
        let mapping = product["best"]["mapping"].as_str().expect("text");
        assert!(explained.contains(mapping), "{mapping} is not in {explained}");
    }

    // Of these sizes any candidate may be the best, so the last is made so: a device's word goes before a prediction.
    let database = Database::open(p.path("tuned.db").as_path()).expect("opens");
    let rows = database.rows().expect("reads");
    assert_eq!(rows.len(), 12);
    for product in products {
        let of_product = rows.iter().filter(|row| product["product"] == row.product.as_str());
        let worst = of_product.max_by(|a, b| a.micros.partial_cmp(&b.micros).expect("numbers"));
        let mut row = worst.expect("a row").clone();
        row.on = "a device".into();
        database.keep(&row).expect("keeps");
        let explained = p.ok(&plan);
        assert!(explained.contains(&format!("takes {}", row.mapping)), "{explained}");
    }
    drop(database);

    // Another file takes all of it.
    let merged = p.path("merged.db");
    let told = p.ok(&["tune", "merge", "--into", text(&merged), file]);
    assert!(told.starts_with("15 measurements"), "{told}");
    assert_eq!(p.ok(&["tune", "show", text(&merged)]), p.ok(&["tune", "show", file]));
}

/// A search that is killed at any point keeps every measurement that it made, and goes on from there: at 10 random
/// points, with `GRAPHC_ALL_KILLS=1` at 200.
#[test]
fn a_killed_search_goes_on_where_it_was() {
    let p = Place::new();
    if !compiler(&p) {
        return;
    }
    let model = p.write("products.gir", PRODUCTS);
    let whole = p.path("whole.db");
    let args = |file: &Path| -> Vec<String> {
        let words = tuning(text(&model), text(file), &["--candidates", "4"]);
        words.into_iter().map(str::to_owned).collect()
    };
    fn words(args: &[String]) -> Vec<&str> {
        args.iter().map(String::as_str).collect()
    }
    let rows = |file: &Path| match file.exists() {
        // A process that was killed may not have come to make the file, or its table.
        true => Database::open(file).expect("opens").rows().expect("reads"),
        false => Vec::new(),
    };
    let undisturbed = p.json(&words(&args(&whole)));
    assert_eq!(undisturbed["measured"].as_u64(), Some(12));
    let want = rows(&whole);
    let points = if std::env::var_os("GRAPHC_ALL_KILLS").is_some() {
        200
    } else {
        10
    };
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |end: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % end
    };
    let (mut searches, mut file, mut had) = (0, p.path("0.db"), 0);
    for point in 0..points {
        if had == want.len() {
            searches += 1;
            (file, had) = (p.path(&format!("{searches}.db")), 0);
        }
        let mut command = p.command(&words(&args(&file)));
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        std::thread::sleep(Duration::from_millis(below(1500)));
        child.kill().expect("is killed or has ended");
        child.wait().expect("ends");
        let now = rows(&file);
        assert!(
            now.len() >= had,
            "point {point}: {} measurements after {had}",
            now.len()
        );
        assert!(now.iter().all(|row| want.contains(row)), "point {point}: {now:?}");
        had = now.len();
    }
    let rest = p.json(&words(&args(&file)));
    assert_eq!(rest["measured"].as_u64(), Some(12 - had as u64), "{rest:#}");
    assert_eq!(rows(&file), want);
    println!("{points} points in {} searches", searches + 1);
}

#[test]
fn what_cannot_be_tuned_says_so() {
    let p = Place::new();
    let model = p.write("products.gir", PRODUCTS);
    let model = text(&model);
    let no_database = p.write(
        "text.db",
        "these are words, and more than a hundred of them would not make a database of measurements",
    );
    let refusals: [(&[&str], &[&str]); 8] = [
        (
            &["run", model, "--tuning", "none.db", "--random"],
            &["none.db", "no such file", "graphc tune"],
        ),
        (
            &["run", model, "--tuning", text(&no_database), "--random"],
            &["text.db", "not a database"],
        ),
        (&["tune", "show", "none.db"], &["none.db", "no such file"]),
        (
            &["tune", "merge", "--into", "new.db", "none.db"],
            &["none.db", "no such file"],
        ),
        (
            &["tune", "run", model, "--database", "t.db", "--device", "cpu"],
            &["--device", "hip or cuda"],
        ),
        (
            &[
                "tune",
                "run",
                model,
                "--database",
                "t.db",
                "--emulate",
                "--target",
                "cpu",
            ],
            &["--target", "one GPU"],
        ),
        (&["tune", "run", model, "--database", "t.db"], &["--device"]),
        (
            &["tune", "run", model, "--emulate", "--target", "gfx90a"],
            &["--database"],
        ),
    ];
    for (args, says) in refusals {
        p.fails(args, 2, says);
    }
    // A file that could not be read made no other.
    assert!(!p.path("new.db").exists());
}
